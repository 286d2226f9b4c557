#include "kfac/inverse/eigenbasis_refresh.h"

#include <ATen/ATen.h>

#include "kfac/inverse/eigen_errors.h"

namespace spillway::kfac {
namespace {

constexpr double kEstimateMargin = 3;  // true norms over estimates of eigen_errors()

at::Tensor traces_in_double(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).sum(-1, false, at::kDouble);
}

at::Tensor norms(const at::Tensor& factor) {
  return at::linalg_vector_norm(factor, 2, at::IntArrayRef{1, 2}, false, at::kDouble);
}

bool rescale(const at::Tensor& factor, const Eigenbasis& basis, const at::Tensor& damping, double tolerance) {
  const auto& vectors = basis.vectors;
  // D = diag(QᵀFQ)
  const auto values = factor.bmm(vectors).mul_(vectors).sum(1);
  const auto weights = (values.clamp_min(0) + damping.to(values.scalar_type())).rsqrt();
  const auto errors = eigen_errors(factor, vectors, values, weights);
  const auto small = errors.weighted.mul(kEstimateMargin).le(tolerance);
  const auto good = small.logical_and(is_orthogonal(errors, factor)).logical_or(at_rounding_level(errors, factor));
  if (!good.all().item<bool>()) return false;
  basis.values.copy_(values.clamp_min(0));
  return true;
}

}  // namespace

Refreshed refresh(const at::Tensor& factor, const Eigenbasis& basis, const at::Tensor& damping, double tolerance) {
  if (tolerance > 0 && factor.size(1) >= kMinWarmSide && rescale(factor, basis, damping, tolerance))
    return Refreshed::rescaled;
  return decompose(factor, basis) ? Refreshed::solved : Refreshed::kept_last;
}

at::Tensor factor_damping(const LayerShape& shape, const std::vector<at::Tensor>& factors, size_t f,
                          const Damping& damping) {
  const auto roles = shape.factors();
  auto gamma = at::full({}, damping.absolute.value_or(damping.relative), factors[f].options().dtype(at::kDouble));
  const auto absolute = gamma;
  const bool of_layer = !damping.absolute && !damping.curvature.defined();
  if (damping.curvature.defined()) gamma = gamma * damping.curvature;
  auto delta = at::ones_like(gamma);
  for (size_t o = 0; o < factors.size(); ++o) {
    const auto trace = traces_in_double(factors[o]);
    const auto divisor = roles[o].role == FactorRole::offsets ? trace : at::ones_like(trace);
    if (of_layer) gamma = gamma * (trace / divisor).mean() / factors[o].size(1);
    // F_f's divisor must also divide its damping; max v_o ≤ ‖F_o‖_F.
    delta = o == f ? delta * divisor.min() : delta / (norms(factors[o]) / divisor).max();
  }
  delta = delta * gamma;
  const bool serves_bias = shape.bias_apart() && roles[f].role == FactorRole::output;
  return damping.absolute && serves_bias ? at::minimum(delta, absolute) : delta;
}

}  // namespace spillway::kfac
