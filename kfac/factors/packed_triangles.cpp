#include "kfac/factors/packed_triangles.h"

#include <ATen/ATen.h>

namespace spillway::kfac {
namespace {

int64_t packed_size(const at::Tensor& matrix) {
  return matrix.size(0) * matrix.size(1) * (matrix.size(1) + 1) / 2;
}

// A matrix's blocks, and the places of their triangles in its rectangle [groups, 2h + 1, m], m = n − h.
struct Blocks {
  at::Tensor top_left, top_right, bottom_left, bottom_right;
  Blocks(const at::Tensor& matrix, int64_t h) {
    const int64_t m = matrix.size(1) - h;
    const auto top = matrix.narrow(1, 0, h), bottom = matrix.narrow(1, h, m);
    top_left = top.narrow(2, 0, h);
    top_right = top.narrow(2, h, m);
    bottom_left = bottom.narrow(2, 0, h);
    bottom_right = bottom.narrow(2, h, m);
  }
};

struct Rectangle {
  at::Tensor top_right;  // h × m
  at::Tensor triangles;  // h + 1 × m: the upper triangle of m × m, and one row down the lower one of h × h
  Rectangle(const at::Tensor& packed, int64_t groups, int64_t n) {
    const int64_t h = n / 2;
    const auto all = packed.view({groups, 2 * h + 1, n - h});
    top_right = all.narrow(1, 0, h);
    triangles = all.narrow(1, h, h + 1);
  }
  at::Tensor upper(int64_t m) const { return triangles.narrow(1, 0, m); }
  at::Tensor lower(int64_t h) const { return triangles.narrow(1, 1, h).narrow(2, 0, h); }
};

template <class Visit>
void for_each_rectangle(at::TensorList matrices, const at::Tensor& packed, const Visit& visit) {
  int64_t offset = 0;
  for (const auto& matrix : matrices) {
    const int64_t n = matrix.size(1), size = packed_size(matrix);
    visit(Blocks(matrix, n / 2), Rectangle(packed.narrow(0, offset, size), matrix.size(0), n));
    offset += size;
  }
}

}  // namespace

int64_t packed_elements(at::TensorList matrices) {
  int64_t sum = 0;
  for (const auto& matrix : matrices) sum += packed_size(matrix);
  return sum;
}

void pack_triangles(at::TensorList matrices, const at::Tensor& packed) {
  for_each_rectangle(matrices, packed, [](const Blocks& from, const Rectangle& to) {
    const int64_t h = from.top_left.size(1), m = from.bottom_right.size(1);
    to.top_right.copy_(from.top_right);
    to.triangles.zero_();
    to.upper(m).copy_(from.bottom_right.triu());
    to.lower(h).add_(from.top_left.tril().to(to.triangles.device(), to.triangles.scalar_type()));
  });
}

std::vector<at::Tensor> packed_diagonals(const at::Tensor& packed) {
  const int64_t h = packed.size(1) / 2, m = packed.size(2);
  const Rectangle rectangle(packed, packed.size(0), h + m);
  return {rectangle.lower(h).diagonal(0, 1, 2), rectangle.upper(m).diagonal(0, 1, 2)};
}

void unpack_triangles(const at::Tensor& packed, at::TensorList matrices) {
  for_each_rectangle(matrices, packed, [](const Blocks& to, const Rectangle& from) {
    const int64_t h = to.top_left.size(1), m = to.bottom_right.size(1);
    to.top_right.copy_(from.top_right);
    to.bottom_left.copy_(from.top_right.transpose(1, 2));
    const auto place = to.top_left.device();
    const auto upper = from.upper(m).to(place), lower = from.lower(h).to(place);
    to.bottom_right.copy_(upper.triu()).add_(upper.triu(1).transpose(1, 2));
    to.top_left.copy_(lower.tril()).add_(lower.tril(-1).transpose(1, 2));
  });
}

}  // namespace spillway::kfac
