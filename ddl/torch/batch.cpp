#include "ddl/torch/batch.h"

#include <ATen/ops/_foreach_copy.h>

#include <algorithm>

#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

int64_t fused_elements(const at::Tensor& tensor) {
  return kFusionBytes / tensor.element_size();
}

/// Appends a piece to the batch. Pieces that lie side by side both in the vector and in the buffer become one copy.
void append(Batch& batch, const Piece& piece) {
  if (piece.elements.size() == 0) return;
  if (!batch.pieces.empty()) {
    Piece& last = batch.pieces.back();
    if (last.elements.end == piece.elements.begin && last.at + last.elements.size() == piece.at) {
      last.elements.end = piece.elements.end;
      return;
    }
  }
  batch.pieces.push_back(piece);
}

/// Copies all pieces in one launch on a GPU, however many there are.
void copy(const Batch& batch, const at::Tensor& buffer, bool to_buffer) {
  if (batch.pieces.empty()) return;
  std::vector<at::Tensor> pieces, places;
  for (const Piece& piece : batch.pieces) {
    pieces.push_back(elements(piece.tensor, piece.elements));
    places.push_back(buffer.narrow(0, piece.at, piece.elements.size()));
  }
  if (to_buffer)
    at::_foreach_copy_(places, pieces, /*non_blocking=*/true);
  else
    at::_foreach_copy_(pieces, places, /*non_blocking=*/true);
}

}  // namespace

int64_t Batch::count() const {
  int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.elements.size();
  return count;
}

Batch Batch::within(const std::vector<Range>& ranges) const {
  Batch inside{.pieces = {}, .size = size};
  for (const Range& range : ranges)
    for (const Piece& piece : pieces) {
      const Range both{std::max(range.begin, piece.elements.begin), std::min(range.end, piece.elements.end)};
      if (both.size() > 0) inside.pieces.push_back({piece.tensor, both, piece.at + both.begin - piece.elements.begin});
    }
  return inside;
}

void for_each_batch(at::TensorList group, const OnBatch& on_batch) {
  if (group.size() > 1) {
    Batch batch;
    for (const at::Tensor& tensor : group) {
      if (tensor.numel() > 0) batch.pieces.push_back({tensor, {0, tensor.numel()}, batch.size});
      batch.size += tensor.numel();
    }
    if (batch.size > 0) on_batch(batch);
    return;
  }
  const at::Tensor& tensor = group[0];
  const int64_t step = fused_elements(tensor);
  for (int64_t begin = 0; begin < tensor.numel(); begin += step) {
    const Range range{begin, std::min(begin + step, tensor.numel())};
    on_batch({.pieces = {{tensor, range, 0}}, .size = range.size()});
  }
}

void for_each_batch_of_parts(const at::Tensor& vector, std::span<const int> order, const OnBatch& on_batch) {
  const auto parts = std::ssize(order);
  const auto share = [&](int64_t count) { return (count + parts - 1) / parts; };
  const int64_t longest = share(vector.numel()), step = share(fused_elements(vector));
  for (int64_t done = 0; done < longest; done += step) {
    const int64_t block = std::min(step, longest - done);
    Batch batch{.pieces = {}, .size = parts * block};
    for (int64_t i = 0; i < parts; ++i) {
      const Range part = part_of({0, vector.numel()}, order[i], parts);
      const auto cut = [&](int64_t at) { return std::min(part.begin + at, part.end); };
      append(batch, {vector, {cut(done), cut(done + block)}, i * block});
    }
    on_batch(batch);
  }
}

void pack(const Batch& batch, const at::Tensor& into) {
  copy(batch, into, /*to_buffer=*/true);
}

void unpack(const Batch& batch, const at::Tensor& from) {
  copy(batch, from, /*to_buffer=*/false);
}

}  // namespace spillway::ddl
