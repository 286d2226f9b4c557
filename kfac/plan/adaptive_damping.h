/// Damping that follows how well the quadratic model predicts the loss: Levenberg–Marquardt. LibTorch-free.
/// Source: Martens & Grosse 2015, §6.5.
#pragma once
#include <cstdint>

namespace spillway::kfac {

/// What the damped quadratic model M(δ) = h + ⟨∇, δ⟩ + ½⟨δ, F̂δ⟩ says a step δ = −lr·ν·V reduces the loss by. F̂ is the
/// damped matrix that was inverted, so F̂V = ∇ and
///   M(0) − M(δ) = lr·ν·(1 − lr·ν/2)·⟨V, ∇⟩,   ν = min(1, √(κ / (lr²⟨V, ∇⟩))).
/// `product` is ⟨V, ∇⟩ over all layers. Zero for a zero product, negative where lr·ν > 2.
double predicted_reduction(double product, double kl_clip, double lr);

/// The factor for the damping, ρ = actual/predicted reduction, `steps` since the last change: ω^steps where ρ > 3/4,
/// ω^−steps where ρ < 1/4 or is no number, else 1; ω = 19/20.
double damping_change(double rho, int64_t steps);

}  // namespace spillway::kfac
