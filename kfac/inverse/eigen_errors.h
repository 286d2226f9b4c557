/// The distance of Q diag(v) Qᵀ from a factor, estimated with a few random vectors instead of products of whole
/// matrices.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::kfac {

/// The norms of every group, [groups], of E = QᵀFQ − diag(d), which is the error of Q diag(d) Qᵀ in place of F. They
/// are estimates: ‖E‖_F² is the mean of ‖Eω‖² over vectors ω of random signs (Hutchinson 1990).
struct EigenErrors {
  at::Tensor off;            ///< ‖E‖_F
  at::Tensor weighted;       ///< ‖W E W‖_F, W = diag(weights)
  at::Tensor orthogonality;  ///< ‖QᵀQ − I‖_F
};

/// Estimates the EigenErrors of a decomposition. The signs are the same in every call. A true norm above three times
/// its estimate has a probability below 1e-6 (worst case, an E of rank one). Shapes: factor and vectors
/// [groups, side, side]; values and weights [groups, side]. Without weights `weighted` is undefined. Cost: about
/// 224·groups·side² flops. No host synchronization.
EigenErrors eigen_errors(const at::Tensor& factor, const at::Tensor& vectors, const at::Tensor& values,
                         const at::Tensor& weights = {});

/// True for each group, as Bool [groups], when `errors` are no larger than rounding leaves in a full solve of `factor`.
/// That is ‖E‖_F ≤ 4√side·ε·‖F‖_F and ‖QᵀQ − I‖_F ≤ 4·side·ε, ε of the factor's type; false where not finite. (LAPACK's
/// ssyevd leaves 6 to 25 ε·‖F‖_F and up to 15√side·ε at sides 64 to 864.) No host synchronization.
at::Tensor at_rounding_level(const EigenErrors& errors, const at::Tensor& factor);
/// True for each group, as Bool [groups], when ‖QᵀQ − I‖_F is within the bound of at_rounding_level().
at::Tensor is_orthogonal(const EigenErrors& errors, const at::Tensor& factor);

}  // namespace spillway::kfac
