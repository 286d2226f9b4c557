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
/// patch leaves the input. Any input strides. Cost: the result, and a padded copy of the part of the input that the box
/// sees.
at::Tensor patch_matrix(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, const Box& box,
                        at::ScalarType dtype);

/// An input along whose dimension `d` each position weighs as many patches as contain it.
struct Covered {
  at::Tensor input;
  at::Tensor weights;  ///< n(x), the length of that dimension
};
/// Returns `input` [batch, channels, *spatial] without the positions along dimension `d` that no patch on `lattice`
/// needs, and n(x) = #{(o, k) : o·stride + k·dilation − padding = x} for those that are left. `like` gives the type and
/// device of the weights. Where patches have gaps between them, it may be with zeros beyond the border.
Covered cover(const at::Tensor& input, const Geometry& geometry, const Lattice& lattice, size_t d,
              const at::TensorOptions& like);

}  // namespace spillway::kfac
