/// Patches of a convolution's input, a workspace-sized piece at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/factors/conv_geometry.h"
#include "kfac/factors/lattice.h"

namespace spillway::kfac {

/// A box of the places of a lattice: [batch, *spatial].
struct Box {
  std::vector<int64_t> start, size;
  int64_t rows() const;
};

/// Cuts all places of `sizes` into boxes of at most `max_rows` places (one at least), whole along the inner dimensions
/// first. Order: lexicographic.
std::vector<Box> boxes(at::IntArrayRef sizes, int64_t max_rows);

/// Returns the places of `lattice` among the output positions of `input` [batch, channels, *spatial]:
/// [batch, *output].
std::vector<int64_t> output_places(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice);

/// Returns how many places of `box` have a position.
int64_t positions_in(const Box& box, const at::Tensor& input, const Geometry& geometry, const Lattice& lattice);

/// Returns the patches at the places of `box`: a new tensor [channels, kernel volume, rows] of type `dtype`. Offsets
/// are in (kD, kH, kW) order. Entries are zero where the patch leaves the input, and where a place has no position. Any
/// input strides. Cost: the result, and no other copy; on a GPU one of patches_of_padded(). The operators that it runs
/// depend on sizes alone, and not on the lattice's start.
at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                        at::ScalarType dtype);

/// Returns the same as patch_matrix(), in a handful of operators whatever the kernel's volume. Cost: the result, and a
/// copy of the input that the patches meet, padded. For GPUs, where an operator costs more than small copies do.
at::Tensor patches_of_padded(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                             at::ScalarType dtype);

/// Returns n(x) = #{(o, k) : o·stride + k·dilation − padding = x}, the number of patches along dimension `d` on
/// `lattice` that contain each of `size` input positions: [size], of the type of `like`.
at::Tensor patches_that_contain(int64_t size, const Geometry& geometry, const Lattice& lattice, size_t d,
                                const at::TensorOptions& like);

}  // namespace spillway::kfac
