/// The scales that multiply a gradient between the eigenbases of its layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kfac/inverse/layer_inverse.h"

namespace spillway::kfac {

/// The scales s = 1/(v_G v_Aᵀ + γ) of a gradient's entries between the eigenbases, in the form in which products use
/// them: [groups, blocks of rows, values of G, blocks of columns, values of A]. A separable layer's blocks of columns
/// are its offsets. A truncated basis leaves out eigenvectors, whose entries have the scale of the tail's value: s_A
/// and s_G have it in place of v_A and v_G, τ in place of both.
struct Scales {
  at::Tensor kept = {};  ///< s of the eigenvectors that are kept, less what s_A, s_G and τ do to their entries already
  at::Tensor by_g = {};  ///< where A is truncated: s_A, less τ where G is truncated too
  at::Tensor by_a = {};  ///< where G is truncated: s_G, less τ where A is truncated too
  at::Tensor of_all = {};  ///< τ, where both are truncated

  /// Returns the tensors that are there.
  std::vector<at::Tensor*> tensors();
};

/// The scales of a layer with eigenbases. Both are empty with inverses, which need none.
struct LayerScales {
  Scales weight = {};
  Scales bias = {};  ///< where the bias is apart: those of G alone, with one column

  std::vector<at::Tensor*> tensors();
};

/// Returns the scales of a layer: views of 1/denominators(), as it is held or as `damping` makes it, and differences of
/// such views. Only eigen without precompute_outer reads `damping`. No host synchronization.
LayerScales scales_of(const LayerShape& shape, const LayerInverse& inverse, const Damping& damping);

}  // namespace spillway::kfac
