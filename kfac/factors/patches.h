/// Patches of a convolution's input, a workspace-sized piece at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/conv_geometry.h"

namespace spillway::kfac {

/// A box of output positions: [batch, *spatial].
struct Box {
  std::vector<int64_t> start, size;
  int64_t rows() const;
};

/// Cuts all positions of `sizes` into boxes of at most `max_rows` positions (one at least), whole along the inner
/// dimensions first. Order: lexicographic.
std::vector<Box> boxes(at::IntArrayRef sizes, int64_t max_rows);

/// Returns the output positions of `input` [batch, channels, *spatial]: [batch, *output].
std::vector<int64_t> output_positions(const at::Tensor& input, const Geometry& geometry);

/// Returns the patches at the positions of `box`: a new tensor [channels, kernel volume, rows] of type `dtype`. Offsets
/// are in (kD, kH, kW) order, and entries are zero where the patch leaves the input. Any input strides. Cost: the
/// result, and a padded copy of the part of the input that the box sees.
at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Box& box, at::ScalarType dtype);

/// Returns the number of the convolution's patches that contain each input position along dimension `d` of length
/// `size`: n(x) = #{(o, k) : o·stride + k·dilation − padding = x}. Shape [size], type and device of `like`.
at::Tensor coverage(const Geometry& geometry, size_t d, int64_t size, const at::Tensor& like);

}  // namespace spillway::kfac
