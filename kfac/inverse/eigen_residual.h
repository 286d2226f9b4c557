/// How far Q diag(v) Qᵀ is from a factor, seen through a few random vectors instead of products of whole matrices.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::kfac {

/// Norms of every group, [groups], of E = QᵀFQ − diag(d): what is wrong when Q diag(d) Qᵀ stands for F. Estimates:
/// ‖E‖_F² is the mean of ‖Eω‖² over vectors ω of random signs (Hutchinson 1990).
struct EigenErrors {
  at::Tensor off;            ///< ‖E‖_F
  at::Tensor weighted;       ///< ‖W E W‖_F, W = diag(weights)
  at::Tensor orthogonality;  ///< ‖QᵀQ − I‖_F
};

/// The signs are the same in every call. A true norm above three times its estimate has a probability below 1e-6 (worst
/// case, an E of rank one). Shapes: factor and vectors [groups, side, side]; values and weights [groups, side]; without
/// weights `weighted` is undefined. Cost:
/// 224·groups·side² flops about. No host synchronisation.
EigenErrors eigen_errors(const at::Tensor& factor, const at::Tensor& vectors, const at::Tensor& values,
                         const at::Tensor& weights = {});

/// Whether `errors` are no larger than rounding leaves in a full solve of `factor`: ‖E‖_F ≤ 4√side·ε·‖F‖_F and
/// ‖QᵀQ − I‖_F ≤ 4·side·ε, ε of the factor's type. Bool [groups], false where not finite. (LAPACK's ssyevd leaves 6 to
/// 25 ε·‖F‖_F and up to 15√side·ε at sides 64 to 864.) No host synchronisation.
at::Tensor at_rounding_level(const EigenErrors& errors, const at::Tensor& factor);
/// The second half of it alone.
at::Tensor is_orthogonal(const EigenErrors& errors, const at::Tensor& factor);

}  // namespace spillway::kfac
