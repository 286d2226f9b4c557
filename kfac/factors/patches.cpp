#include "kfac/factors/patches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace spillway::kfac {
namespace {

// The input positions that one kernel offset meets in a row of patches: that of patch begin + i is first + i·stride.
struct Meeting {
  int64_t begin, end, first, stride;

  int64_t stop() const { return begin == end ? first : first + (end - begin - 1) * stride + 1; }
};

// Returns how many of `count` places along dimension `d` from `start` on have a position, for an input of `size`.
int64_t positions_from(const Geometry& geometry, const Lattice& lattice, size_t d, int64_t start, int64_t count,
                       int64_t size) {
  return std::clamp<int64_t>(lattice.count(d, geometry.output_size(d, size)) - start, 0, count);
}

// Returns what offset `k` along dimension `d` meets of an input of `size`, for the `count` patches of the lattice's
// positions from `start` on.
Meeting meet(const Geometry& geometry, const Lattice& lattice, size_t d, int64_t start, int64_t count, int64_t k,
             int64_t size) {
  const int64_t stride = lattice.step[d] * geometry.stride[d];
  const int64_t first = (lattice.start[d] + start * lattice.step[d]) * geometry.stride[d] - geometry.padding[d] +
                        k * geometry.dilation[d];
  const auto below = [&](int64_t end) { return end <= first ? 0 : (end - first - 1) / stride + 1; };
  const int64_t begin = below(0), end = std::min(count, below(size));
  if (begin >= end) return {0, 0, 0, stride};
  return {begin, end, first + begin * stride, stride};
}

// Copies what every offset along dimension `d` and the dimensions after it meets inside the input. `from` is
// [channels, batch, *spatial], `to` [channels, *kernel from d on, batch, *positions].
void copy_offsets(const at::Tensor& to, const at::Tensor& from, const Geometry& geometry, const Lattice& lattice,
                  const Box& box, size_t d) {
  if (d == geometry.dims()) {
    to.copy_(from);
    return;
  }
  const auto dims = static_cast<int64_t>(geometry.dims()), dim = static_cast<int64_t>(d);
  const int64_t start = box.start[d + 1], size = from.size(dim + 2);
  const int64_t count = positions_from(geometry, lattice, d, start, box.size[d + 1], size);
  for (int64_t k = 0; k < geometry.kernel[d]; ++k) {
    const auto met = meet(geometry, lattice, d, start, count, k, size);
    copy_offsets(to.select(1, k).narrow(dims + 1, met.begin, met.end - met.begin),
                 from.slice(dim + 2, met.first, met.stop(), met.stride), geometry, lattice, box, d + 1);
  }
}

at::Tensor zero_patches(const at::Tensor& input, const Geometry& geometry, const Box& box, at::ScalarType dtype) {
  std::vector<int64_t> sizes{input.size(1)};
  sizes.insert(sizes.end(), geometry.kernel.begin(), geometry.kernel.end());
  sizes.insert(sizes.end(), box.size.begin(), box.size.end());
  return at::zeros(sizes, input.options().dtype(dtype));
}

// Returns the samples of `box`: [channels, batch, *spatial].
at::Tensor samples_of(const at::Tensor& input, const Box& box) {
  return input.narrow(0, box.start[0], box.size[0]).transpose(0, 1);
}

at::Tensor as_matrix(const at::Tensor& patches, const Geometry& geometry, const Box& box) {
  return patches.view({patches.size(0), geometry.kernel_volume(), box.rows()});
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

std::vector<int64_t> output_places(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice) {
  std::vector<int64_t> sizes{input.size(0)};
  for (size_t d = 0; d < geometry.dims(); ++d)
    sizes.push_back(lattice.places(d, geometry.output_size(d, input.size(d + 2))));
  return sizes;
}

int64_t positions_in(const Box& box, const at::Tensor& input, const Geometry& geometry, const Lattice& lattice) {
  int64_t all = box.size[0];
  for (size_t d = 0; d < geometry.dims(); ++d)
    all *= positions_from(geometry, lattice, d, box.start[d + 1], box.size[d + 1], input.size(d + 2));
  return all;
}

at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                        at::ScalarType dtype) {
  // One copy is enough for a kernel of one offset; others take a copy each on a CPU.
  if (!input.is_cpu() && geometry.kernel_volume() > 1) return patches_of_padded(input, geometry, lattice, box, dtype);
  const auto patches = zero_patches(input, geometry, box, dtype);
  copy_offsets(patches, samples_of(input, box), geometry, lattice, box, 0);
  return as_matrix(patches, geometry, box);
}

at::Tensor patches_of_padded(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                             at::ScalarType dtype) {
  const auto dims = static_cast<int64_t>(geometry.dims());
  auto from = samples_of(input, box), patches = zero_patches(input, geometry, box, dtype);
  auto to = patches;
  std::vector<int64_t> padding(2 * dims), sizes(2 * dims + 2), strides(2 * dims + 2), steps(dims);
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t size = from.size(d + 2), start = box.start[d + 1];
    const int64_t count = positions_from(geometry, lattice, d, start, box.size[d + 1], size);
    steps[d] = lattice.step[d] * geometry.stride[d];
    // The patches meet the input from `first` on, which may lie outside it.
    const int64_t first = (lattice.start[d] + start * lattice.step[d]) * geometry.stride[d] - geometry.padding[d];
    const int64_t length =
        std::max<int64_t>(count - 1, 0) * steps[d] + (geometry.kernel[d] - 1) * geometry.dilation[d] + 1;
    const int64_t begin = std::clamp<int64_t>(first, 0, size), end = std::clamp<int64_t>(first + length, begin, size);
    const int64_t padded = length - (end - begin), before = std::clamp<int64_t>(-first, 0, padded);
    from = from.narrow(d + 2, begin, end - begin);
    padding[2 * (dims - 1 - d)] = before;
    padding[2 * (dims - 1 - d) + 1] = padded - before;
    to = to.narrow(dims + 2 + d, 0, count);
    sizes[d + 1] = geometry.kernel[d];
    sizes[dims + 2 + d] = count;
  }
  const auto padded = at::constant_pad_nd(from, padding);
  sizes[0] = padded.size(0);
  strides[0] = padded.stride(0);
  sizes[dims + 1] = padded.size(1);
  strides[dims + 1] = padded.stride(1);
  for (int64_t d = 0; d < dims; ++d) {
    strides[d + 1] = geometry.dilation[d] * padded.stride(d + 2);
    strides[dims + 2 + d] = steps[d] * padded.stride(d + 2);
  }
  to.copy_(padded.as_strided(sizes, strides));
  return as_matrix(patches, geometry, box);
}

at::Tensor patches_that_contain(int64_t size, const Geometry& geometry, const Lattice& lattice, size_t d,
                                const at::TensorOptions& like) {
  auto count = at::zeros({size}, like);
  const int64_t patches = lattice.count(d, geometry.output_size(d, size));
  for (int64_t k = 0; k < geometry.kernel[d]; ++k) {
    const auto met = meet(geometry, lattice, d, 0, patches, k, size);
    count.slice(0, met.first, met.stop(), met.stride).add_(1);
  }
  return count;
}

}  // namespace spillway::kfac
