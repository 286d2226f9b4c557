#include "kfac/factors/patches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace spillway::kfac {
namespace {

// The input positions that patches contain along one dimension: patch i has low + i·stride + k·dilation, k < kernel.
struct Windows {
  int64_t low, stride, kernel, dilation;

  int64_t length() const { return dilation * (kernel - 1) + 1; }
  bool have_gaps() const { return stride > length(); }
};

// Returns the windows along dimension `d`, of which the first is that of the lattice's position `first`.
Windows windows_of(const Geometry& geometry, const Lattice& lattice, size_t d, int64_t first) {
  const int64_t position = lattice.start[d] + first * lattice.step[d];
  return {position * geometry.stride[d] - geometry.padding[d], lattice.step[d] * geometry.stride[d], geometry.kernel[d],
          geometry.dilation[d]};
}

// Returns positions [low, high) of `input` along `dim`, and zeros for those that it does not have.
at::Tensor padded(const at::Tensor& input, int64_t dim, int64_t low, int64_t high) {
  const int64_t size = input.size(dim);
  const int64_t from = std::clamp<int64_t>(low, 0, size);
  const int64_t to = std::clamp<int64_t>(high, from, size);
  auto part = input.narrow(dim, from, to - from);
  const int64_t before = std::min(std::max<int64_t>(0, -low), high - low);
  const int64_t after = (high - low) - (to - from) - before;
  if (before == 0 && after == 0) return part;
  std::vector<int64_t> pads(2 * (input.dim() - dim), 0);
  pads[pads.size() - 2] = before;
  pads[pads.size() - 1] = after;
  return at::constant_pad_nd(part, pads, 0);
}

// Returns what `count` windows contain, one behind the other along `dim`, with zeros beyond the border.
at::Tensor gather(const at::Tensor& input, int64_t dim, const Windows& windows, int64_t count) {
  const auto longs = input.options().dtype(at::kLong);
  const auto starts = at::arange(count, longs).mul_(windows.stride).add_(windows.low);
  const auto offsets = at::arange(windows.kernel, longs).mul_(windows.dilation);
  const auto positions = starts.unsqueeze(1).add(offsets).flatten();
  const int64_t size = input.size(dim);
  auto part = input.index_select(dim, positions.clamp(0, size - 1));
  if (windows.low >= 0 && windows.low + (count - 1) * windows.stride + windows.length() <= size) return part;
  std::vector<int64_t> along(input.dim(), 1);
  along[dim] = -1;
  return part.masked_fill_(positions.lt(0).logical_or_(positions.ge(size)).view(along), 0);
}

}  // namespace

int64_t Box::rows() const {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
}

std::vector<Box> boxes(at::IntArrayRef sizes, int64_t max_rows) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return {};
  std::vector<int64_t> tile(sizes.size(), 1);
  int64_t room = std::max<int64_t>(max_rows, 1);
  for (size_t d = sizes.size(); d-- > 0; room /= tile[d]) tile[d] = std::clamp<int64_t>(room, 1, sizes[d]);

  std::vector<Box> all;
  std::vector<int64_t> start(sizes.size(), 0);
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

std::vector<int64_t> output_positions(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice) {
  std::vector<int64_t> sizes{input.size(0)};
  for (size_t d = 0; d < geometry.dims(); ++d)
    sizes.push_back(lattice.count(d, geometry.output_size(d, input.size(d + 2))));
  return sizes;
}

at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                        at::ScalarType dtype) {
  const int64_t dims = geometry.dims();
  auto part = input.narrow(0, box.start[0], box.size[0]);
  std::vector<Windows> windows;
  for (size_t d = 0; d < geometry.dims(); ++d) {
    auto all = windows_of(geometry, lattice, d, box.start[d + 1]);
    const int64_t dim = d + 2, count = box.size[d + 1];
    if (all.have_gaps()) {
      part = gather(part, dim, all, count);
      all.stride = all.kernel;
      all.dilation = 1;
    } else {
      part = padded(part, dim, all.low, all.low + (count - 1) * all.stride + all.length());
    }
    windows.push_back(all);
  }
  // [batch, channels, *out] grows one dimension of offsets after the other.
  for (size_t d = 0; d < geometry.dims(); ++d) {
    part = part.unfold(d + 2, windows[d].length(), windows[d].stride);
    part = part.slice(-1, 0, windows[d].length(), windows[d].dilation);
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

Covered cover(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, size_t d,
              const at::TensorOptions& like) {
  const int64_t dim = d + 2, size = input.size(dim);
  const int64_t outputs = lattice.count(d, geometry.output_size(d, size));
  const auto windows = windows_of(geometry, lattice, d, 0);
  if (windows.have_gaps()) return {gather(input, dim, windows, outputs), at::ones({outputs * windows.kernel}, like)};
  const auto x = at::arange(size, like.dtype(at::kLong)) - windows.low;
  const int64_t last = (outputs - 1) * windows.stride;
  auto count = at::zeros({size}, like);
  for (int64_t k = 0; k < windows.kernel; ++k) {
    const auto origin = x - k * windows.dilation;
    count += origin.ge(0).logical_and(origin.le(last)).logical_and(origin.remainder(windows.stride).eq(0));
  }
  return {input, count};
}

}  // namespace spillway::kfac
