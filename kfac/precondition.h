/// V = F⁻¹∇ of one layer, through the eigenbases of its factors.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kfac/eigen.h"
#include "kfac/layer_shape.h"

namespace spillway::kfac {

/// γ: absolute where given, else relative · (tr A/dim A) · (tr G/dim G).
struct Damping {
  double relative = 0.3;
  std::optional<double> absolute;
};

/// A layer's gradient, or what has become of it: `weight` as the parameter is shaped, `bias` undefined where there is
/// none.
struct LayerGradient {
  at::Tensor weight;
  at::Tensor bias;
};

/// The preconditioned gradient, in the type of the eigenbases. With ∇ = [weight as out × in·k, bias as last column]:
///   full:       V1 = Q_Gᵀ ∇ Q_A,  V2 = V1 / (v_G v_Aᵀ + γ),  V = Q_G V2 Q_Aᵀ           (KAISA eq. 15–17)
///   separable:  the same with Q_A = Q_C ⊗ Q_K and v_A = v_C ⊗ v_K/Σv_K for the weight; the bias uses G alone,
///               V_b = Q_G (Q_Gᵀ ∇_b / (v_G + γ_b)),  γ_b = relative · tr G/dim G
/// `bases` in the order of LayerShape::factors(). Groups are independent; γ is the whole layer's. A layer without
/// curvature (a factor that is zero) keeps its gradient. Workspace: three times the gradient. No host synchronisation.
LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const std::vector<Eigenbasis>& bases,
                           const Damping& damping);

}  // namespace spillway::kfac
