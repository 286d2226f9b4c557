/// The refresh of a factor's eigenbasis: from the last basis where that is good enough, else by a full decomposition.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/inverse/eigenbasis.h"
#include "kfac/inverse/layer_inverse.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

enum class Refreshed : uint8_t {
  solved,     ///< a full decomposition
  rescaled,   ///< Q kept, v = diag(QᵀFQ)
  kept_last,  ///< neither succeeded: the basis is as it was
};

/// The side below which a full decomposition costs no more than the check that may avoid it.
inline constexpr int64_t kMinWarmSide = 128;

/// Brings `basis` up to date with `factor` [count, side, side]. With a `tolerance` above 0 and side ≥ kMinWarmSide, it
/// first checks M = QᵀFQ = D + E (D diagonal), with Q the last eigenvectors. Q stays and v = D when every group passes:
/// Q is orthogonal, and either
///     ‖(D+δ)^-½ E (D+δ)^-½‖_F ≤ tolerance,   δ = `damping` (0-dim, factor_damping()),
/// or E is no larger than rounding would leave in a full decomposition (at_rounding_level()). Otherwise it makes a full
/// decomposition, as decompose() does.
///
/// The check bounds the error. With H = ⊗F + γ and H̃ = ⊗QDQᵀ + γ, take factors F_f with δ_f of factor_damping() and
/// off-diagonal ε_f as above. Because −ε_f(D_f+δ_f) ≤ E_f ≤ ε_f(D_f+δ_f) and δ_A·max v_G ≤ γ, they give
///     −ε H̃ ≤ H − H̃ ≤ ε H̃,  ε = Σ ε_f + O(ε²),   so   ‖H⁻¹∇ − H̃⁻¹∇‖_H̃ ≤ ε/(1−ε) · ‖H̃⁻¹∇‖_H̃
/// for every gradient ∇: a relative error of the preconditioned gradient, in the Fisher metric. ‖·‖_F is estimated, and
/// the estimate must be at most a third of the tolerance (eigen_errors()). Q is untouched, so the errors of warm starts
/// do not add up.
///
/// Cost of keeping Q: 2·groups·side³ flops and 224·groups·side², workspace 2·groups·side² elements, one host
/// synchronization. Refusing Q adds that to decompose()'s cost. Factors are refreshed one at a time, because LAPACK
/// would loop over a batch. There is no orthogonal iteration between keeping Q and a full decomposition. On the CPU one
/// sweep that rotates all pairs at once takes four products of side³, as much as a full decomposition. After an
/// ordinary factor update three to five sweeps are needed. State: Q and v alone. Source: kept eigenvectors,
/// George et al. 2018 (EKFAC) §3.
[[nodiscard]] Refreshed refresh(const at::Tensor& factor, const Eigenbasis& basis, const at::Tensor& damping = {},
                                double tolerance = 0);

/// Returns δ of factor `f`, the least damping of its eigenvalues in the layer's inverse, 0-dim, float64:
///     δ_f = γ / Π_{o≠f} max v_o,   with max v_o ≤ ‖F_o‖_F,
/// γ as in precondition() (K counts divided by its trace). δ is 0 or NaN for a layer without curvature. `factors` are
/// the layer's, in the order of LayerShape::factors(). Cost: one pass over the other factors; no host synchronization.
at::Tensor factor_damping(const LayerShape& shape, const std::vector<at::Tensor>& factors, size_t f,
                          const Damping& damping);

}  // namespace spillway::kfac
