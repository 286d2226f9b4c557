/// Eigendecompositions of factors.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::kfac {

/// F = Q diag(v) Qᵀ of every group: `vectors` [groups, side, side] with eigenvectors as columns, `values` [groups,
/// side].
struct Eigenbasis {
  at::Tensor vectors;
  at::Tensor values;

  /// Q = I, v = 0: the basis of a factor that nobody has seen. Born in Category::eigenbases.
  static Eigenbasis identity(int64_t groups, int64_t side, const at::TensorOptions& like);
};

/// Overwrites `basis` with the decomposition of the symmetric `factor` [groups, side, side]; eigenvalues clamped at 0.
/// Solved in the factor's type and checked (Q orthogonal, FQ = QΛ, to rounding: at_rounding_level()), once more in
/// float64 when that does not converge or is no decomposition. Returns false, and leaves `basis` as it was, when both
/// fail. Cost: 9·groups·side³ flops about, workspace 4·groups·side² elements, one host synchronisation.
[[nodiscard]] bool decompose(const at::Tensor& factor, const Eigenbasis& basis);

}  // namespace spillway::kfac
