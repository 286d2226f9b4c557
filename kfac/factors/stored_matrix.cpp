#include "kfac/factors/stored_matrix.h"

#include <ATen/ATen.h>

#include <limits>

#include "kfac/factors/packed_triangles.h"

namespace spillway::kfac {

namespace {

// Returns x xᵀ, with the same number at (i, j) and at (j, i).
at::Tensor outer(const at::Tensor& x) {
  return x.unsqueeze(1) * x.unsqueeze(2);
}

}  // namespace

at::Tensor StoredMatrix::load() const {
  if (!diagonal.defined()) return entries;
  auto matrix = entries.to(diagonal.scalar_type()).mul_(outer(diagonal.sqrt()));
  matrix.diagonal(0, -2, -1).copy_(diagonal);
  return matrix;
}

void StoredMatrix::store(const at::Tensor& matrix) const {
  if (!diagonal.defined()) {
    if (!matrix.is_same(entries)) entries.copy_(matrix);
    return;
  }
  diagonal.copy_(matrix.diagonal(0, -2, -1));
  const auto seen = diagonal.ge(std::numeric_limits<float>::min());  // below, the product of two roots would overflow
  const auto lower = (matrix * outer(at::where(seen, diagonal.rsqrt(), at::zeros_like(diagonal)))).tril_();
  // Two entries that differ by a rounding may round to numbers 2⁻¹¹ apart: one of them stands for both.
  entries.copy_(lower + lower.tril(-1).transpose(1, 2));
}

at::Tensor StoredTriangle::load() const {
  const int64_t count = entries.size(0), side = entries.size(1) / 2 + entries.size(2);
  const auto matrix = at::empty({count, side, side}, entries.options());
  unpack_triangles(entries.flatten(), {matrix});
  return StoredMatrix{matrix, diagonal}.load();
}

void StoredTriangle::store(const at::Tensor& matrix) const {
  if (!diagonal.defined()) return pack_triangles({matrix}, entries.flatten());
  const StoredMatrix rounded{at::empty_like(matrix, entries.scalar_type()), diagonal};
  rounded.store(matrix);
  pack_triangles({rounded.entries}, entries.flatten());
}

at::Tensor traces(const std::vector<StoredTriangle>& stacks) {
  std::vector<at::Tensor> first, second;  // halves of the diagonals; whole ones are the first
  for (const StoredTriangle& stack : stacks) {
    if (stack.diagonal.defined()) {
      first.push_back(stack.diagonal);
    } else {
      const auto halves = packed_diagonals(stack.entries);
      first.push_back(halves[0]);
      second.push_back(halves[1]);
    }
  }
  const auto sums = at::cat(first).sum(1);
  return second.empty() ? sums : sums + at::cat(second).sum(1);
}

StoredTriangle joined(const std::vector<StoredTriangle>& stacks) {
  if (stacks.size() == 1) return stacks.front();
  std::vector<at::Tensor> entries, diagonals;
  for (const StoredTriangle& stack : stacks) {
    entries.push_back(stack.entries);
    if (stack.diagonal.defined()) diagonals.push_back(stack.diagonal);
  }
  return {at::cat(entries), diagonals.empty() ? at::Tensor() : at::cat(diagonals)};
}

at::ScalarType storage_type(FactorDtype storage, at::ScalarType wide) {
  if (storage == FactorDtype::bf16) return at::kBFloat16;
  return storage == FactorDtype::fp16 ? at::kHalf : wide;
}

}  // namespace spillway::kfac
