/// Patches of a convolution's input, a workspace-sized piece at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/conv_geometry.h"
#include "kfac/factors/lattice.h"

namespace spillway::kfac {

/// A box of output positions: [batch, *spatial].
struct Box {
  std::vector<int64_t> start, size;
  int64_t rows() const;
};

/// Cuts all positions of `sizes` into boxes of at most `max_rows` positions (one at least), whole along the inner
/// dimensions first. Order: lexicographic.
std::vector<Box> boxes(at::IntArrayRef sizes, int64_t max_rows);

/// Returns the sizes of the output positions of `input` [batch, channels, *spatial] that are on `lattice`:
/// [batch, *output].
std::vector<int64_t> output_positions(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice);

/// Returns the patches at the positions of `box`, which counts along `lattice`: a new tensor
/// [channels, kernel volume, rows] of type `dtype`. Offsets are in (kD, kH, kW) order, and entries are zero where the
/// patch leaves the input. Any input strides. Cost: the result, and no other copy.
at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                        at::ScalarType dtype);

/// Returns n(x) = #{(o, k) : o·stride + k·dilation − padding = x}, the number of patches along dimension `d` on
/// `lattice` that contain each of `size` input positions: [size], of the type of `like`.
at::Tensor patches_that_contain(int64_t size, const Geometry& geometry, const Lattice& lattice, size_t d,
                                const at::TensorOptions& like);

}  // namespace spillway::kfac
