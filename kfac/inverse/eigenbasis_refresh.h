/// How a factor's eigenbasis is brought up to date: from the last one where that is good enough, else anew.
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
  kept_last,  ///< neither could be had: the basis is as it was
};

/// Below this side a full decomposition costs no more than finding out whether it is needed.
inline constexpr int64_t kSmallestWarmSide = 128;

/// Brings `basis` up to date with `factor` [count, side, side]. With a `tolerance` above 0 and side ≥
/// kSmallestWarmSide, first M = QᵀFQ = D + E (D diagonal) is looked at, Q the last eigenvectors: where
///     ‖(D+δ)^-½ E (D+δ)^-½‖_F ≤ tolerance,   δ = `damping` (0-dim, factor_damping()),
/// or E is no larger than rounding would leave in a full decomposition (at_rounding_level()), and Q is orthogonal, in
/// every group, Q stays and v = D. Else a full decomposition, as decompose().
///
/// What that is worth: with H = ⊗F + γ and H̃ = ⊗QDQᵀ + γ, factors F_f with δ_f of factor_damping() and off-diagonal
/// ε_f as above give, since −ε_f(D_f+δ_f) ≤ E_f ≤ ε_f(D_f+δ_f) and δ_A·max v_G ≤ γ,
///     −ε H̃ ≤ H − H̃ ≤ ε H̃,  ε = Σ ε_f + O(ε²),   so   ‖H⁻¹∇ − H̃⁻¹∇‖_H̃ ≤ ε/(1−ε) · ‖H̃⁻¹∇‖_H̃
/// for every gradient ∇: a relative error of the preconditioned gradient, in the Fisher metric. ‖·‖_F is estimated and
/// must be a third of the tolerance (eigen_errors()). Q is untouched, so warm starts do not add up.
///
/// Cost of keeping Q: 2·groups·side³ flops and 224·groups·side², workspace 2·groups·side² elements, one host
/// synchronisation; refusing it adds that to decompose()'s. One job at a time: LAPACK would loop over a batch.
/// No orthogonal iteration lies between the two: on the CPU one sweep that rotates all pairs at once takes four
/// products of side³, as much as a full decomposition, and three to five are needed after an ordinary factor update.
/// State: Q and v alone decide. Source: kept eigenvectors, George et al. 2018 (EKFAC) §3.
[[nodiscard]] Refreshed refresh(const at::Tensor& factor, const Eigenbasis& basis, const at::Tensor& damping = {},
                                double tolerance = 0);

/// δ of factor `f`, what its eigenvalues are damped by at least in the layer's inverse, 0-dim, float64:
///     δ_f = γ / Π_{o≠f} max v_o,   with max v_o ≤ ‖F_o‖_F,
/// γ as in precondition() (K counts divided by its trace). 0 or NaN for a layer without curvature. `factors` of the
/// layer in the order of LayerShape::factors(). Cost: one pass over the other factors; no host synchronisation.
at::Tensor factor_damping(const LayerShape& shape, const std::vector<at::Tensor>& factors, size_t f,
                          const Damping& damping);

}  // namespace spillway::kfac
