#include "kfac/factors/patches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace spillway::kfac {
namespace {

// Returns the part of `input` that outputs [start, start+count) along spatial dimension `d` see. It has zeros where it
// leaves the input.
at::Tensor window(const at::Tensor& input, const Geometry& geometry, size_t d, int64_t start, int64_t count) {
  const int64_t dim = d + 2;
  const int64_t size = input.size(dim);
  const int64_t low = start * geometry.stride[d] - geometry.padding[d];
  const int64_t high = low + (count - 1) * geometry.stride[d] + geometry.dilation[d] * (geometry.kernel[d] - 1) + 1;
  const int64_t from = std::clamp<int64_t>(low, 0, size);
  const int64_t to = std::clamp<int64_t>(high, from, size);
  auto part = input.narrow(dim, from, to - from);
  const int64_t before = std::min(std::max<int64_t>(0, -low), high - low);
  const int64_t after = (high - low) - (to - from) - before;
  if (before == 0 && after == 0) return part;
  std::vector<int64_t> pads(2 * (geometry.dims() - d), 0);
  pads[pads.size() - 2] = before;
  pads[pads.size() - 1] = after;
  return at::constant_pad_nd(part, pads, 0);
}

}  // namespace

int64_t Box::rows() const {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
}

std::vector<Box> boxes(at::IntArrayRef sizes, int64_t max_rows) {
  std::vector<int64_t> tile(sizes.size(), 1);
  int64_t room = std::max<int64_t>(max_rows, 1);
  for (size_t d = sizes.size(); d-- > 0; room /= tile[d]) tile[d] = std::clamp<int64_t>(room, 1, sizes[d]);

  std::vector<Box> all;
  std::vector<int64_t> start(sizes.size(), 0);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return all;
  while (true) {
    Box box{start, tile};
    for (size_t d = 0; d < sizes.size(); ++d) box.size[d] = std::min(tile[d], sizes[d] - start[d]);
    all.push_back(std::move(box));
    size_t d = sizes.size();
    while (d-- > 0) {
      start[d] += tile[d];
      if (start[d] < sizes[d]) break;
      start[d] = 0;
      if (d == 0) return all;
    }
  }
}

std::vector<int64_t> output_positions(const at::Tensor& input, const Geometry& geometry) {
  std::vector<int64_t> sizes{input.size(0)};
  for (size_t d = 0; d < geometry.dims(); ++d) sizes.push_back(geometry.output_size(d, input.size(d + 2)));
  return sizes;
}

at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Box& box, at::ScalarType dtype) {
  const int64_t dims = geometry.dims();
  auto part = input.narrow(0, box.start[0], box.size[0]);
  for (size_t d = 0; d < geometry.dims(); ++d) part = window(part, geometry, d, box.start[d + 1], box.size[d + 1]);
  // [batch, channels, *out] grows one dimension of offsets after the other.
  for (size_t d = 0; d < geometry.dims(); ++d) {
    const int64_t extent = geometry.dilation[d] * (geometry.kernel[d] - 1) + 1;
    part = part.unfold(d + 2, extent, geometry.stride[d]);
    part = part.slice(-1, 0, extent, geometry.dilation[d]);
  }
  std::vector<int64_t> order{1};
  for (int64_t d = 0; d < dims; ++d) order.push_back(2 + dims + d);
  order.push_back(0);
  for (int64_t d = 0; d < dims; ++d) order.push_back(2 + d);
  part = part.permute(order);
  auto patches = at::empty(part.sizes(), part.options().dtype(dtype));
  patches.copy_(part);
  return patches.view({input.size(1), geometry.kernel_volume(), box.rows()});
}

at::Tensor coverage(const Geometry& geometry, size_t d, int64_t size, const at::Tensor& like) {
  const auto x = at::arange(size, like.options().dtype(at::kLong)) + geometry.padding[d];
  const int64_t last = (geometry.output_size(d, size) - 1) * geometry.stride[d];
  auto count = at::zeros({size}, like.options());
  for (int64_t k = 0; k < geometry.kernel[d]; ++k) {
    const auto origin = x - k * geometry.dilation[d];
    count += origin.ge(0).logical_and(origin.le(last)).logical_and(origin.remainder(geometry.stride[d]).eq(0));
  }
  return count;
}

}  // namespace spillway::kfac
