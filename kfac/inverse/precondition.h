/// The preconditioned gradient V = F⁻¹∇ of one layer, through the inverse that a gradient worker holds.
#pragma once
#include <ATen/core/Tensor.h>

#include "kfac/inverse/layer_inverse.h"
#include "kfac/inverse/scales.h"

namespace spillway::kfac {

/// A layer's gradient, raw or preconditioned: `weight` in the parameter's shape, `bias` undefined where there is none.
struct LayerGradient {
  at::Tensor weight;
  at::Tensor bias;
};

/// Returns the preconditioned gradient, in the type of the inverse. With ∇ = [weight as out × in·k, bias as last
/// column]:
///   eigen:      V1 = Q_Gᵀ ∇ Q_A,  V2 = V1 / (v_G v_Aᵀ + γ),  V = Q_G V2 Q_Aᵀ           (KAISA eq. 15–17)
///   plain, pi:  V = (G + d_G I)⁻¹ ∇ (A + d_A I)⁻¹, the damping of invert_factor()
/// With blocks of inputs and outputs, each tile of ∇ is preconditioned in this way with its own Q_A and Q_G. For
/// separable layers Q_A = Q_C ⊗ Q_K and v_A = v_C ⊗ v_K/Σv_K, or the Kronecker product of the two inverses is used.
/// With a truncated Q_A, its tail's values τ = 1/(v_G τ_A + γ) scale what Q_A leaves out:
///   V = Q_G [τ ∘ M + ((s − τ) ∘ (M Q_A)) Q_Aᵀ],   M = Q_Gᵀ ∇,   s = 1/(v_G v_Aᵀ + γ),
/// and a truncated Q_G acts in the same way from the left. Products are then with side × rank in place of side². A
/// bias that is apart uses G alone: V_b = Q_G (Q_Gᵀ ∇_b / (v_G + γ_b)) or (G + d_G I)⁻¹ ∇_b. `scales` are those of
/// scales_of(). Groups are independent; γ is the whole layer's. A layer without curvature (a factor that is zero) keeps
/// its gradient. Workspace: four times the gradient, and with 16-bit storage the layer's matrices. No host
/// synchronization.
LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const LayerInverse& inverse,
                           const LayerScales& scales);

}  // namespace spillway::kfac
