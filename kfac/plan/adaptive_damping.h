/// Damping that follows how well the quadratic model predicts the loss: Levenberg–Marquardt. LibTorch-free.
/// Source: Martens & Grosse 2015, §6.5.
#pragma once
#include <cstdint>

namespace spillway::kfac {

/// Returns the reduction of the loss that the damped quadratic model M(δ) = h + ⟨∇, δ⟩ + ½⟨δ, F̂δ⟩ predicts for a step
/// δ = −lr·ν·V. F̂ is the damped matrix that was inverted, so F̂V = ∇ and
///   M(0) − M(δ) = lr·ν·(1 − lr·ν/2)·⟨V, ∇⟩.
/// `product` is ⟨V, ∇⟩ over all layers, and `length` is lr·ν. The result is negative where that is above 2.
double predicted_reduction(double product, double length);

/// Returns the factor to multiply the damping by, with ω = 19/20: ω^steps where ρ > 3/4, ω^−steps where ρ < 1/4 or ρ is
/// not a number, else 1. ρ is the actual reduction divided by the predicted one. `steps` have passed since the last
/// change.
double damping_change(double rho, int64_t steps);

}  // namespace spillway::kfac
