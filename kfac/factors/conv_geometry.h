/// The geometry by which a convolution walks over its input.
#pragma once
#include <cstdint>
#include <vector>

namespace spillway::kfac {

/// The geometry of a convolution, one entry per spatial dimension; `padding` zeros are on both sides.
struct Geometry {
  std::vector<int64_t> kernel, stride, padding, dilation;
  int64_t groups = 1;

  /// Returns the geometry of one weight per position.
  static Geometry pointwise(size_t dims) {
    const std::vector<int64_t> ones(dims, 1);
    return {ones, ones, std::vector<int64_t>(dims, 0), ones};
  }
  size_t dims() const { return kernel.size(); }
  int64_t kernel_volume() const {
    int64_t volume = 1;
    for (int64_t k : kernel) volume *= k;
    return volume;
  }
  /// Returns the output positions along dimension `d` for an input of `size`.
  int64_t output_size(size_t d, int64_t size) const {
    return (size + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
  }
  /// True when patches are the input itself: one offset, no stride, no padding.
  bool is_pointwise() const {
    for (size_t d = 0; d < dims(); ++d)
      if (kernel[d] != 1 || stride[d] != 1 || padding[d] != 0) return false;
    return true;
  }
};

}  // namespace spillway::kfac
