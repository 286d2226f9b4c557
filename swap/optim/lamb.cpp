#include <ATen/ATen.h>

#include <cmath>

#include "swap/optim/optimizer.h"

namespace spillway {

Lamb::Lamb(const std::vector<at::Tensor>& parameters, LambOptions options)
    : Optimizer(parameters, options.lr, options.group_bytes, 4),
      options_(options),
      mean_(make_state()),
      variance_(make_state()),
      steps_(make_steps()) {}

std::vector<OptimizerState> Lamb::state() const {
  return {{"mean", mean_}, {"variance", variance_}, {"steps", steps_}};
}

// Follows the lines of algorithm 2 in You et al. 2020, in their order; t counts the updates of each parameter.
std::vector<at::Tensor> Lamb::directions(const std::vector<size_t>& group) {
  const std::vector<at::Tensor> mean = gather(mean_, group), variance = gather(variance_, group);
  const std::vector<at::Tensor> gradient = gradients(group), steps = gather(steps_, group);
  at::_foreach_add_(steps, 1);
  // 1 − βᵗ, as a tensor, because the host would have to wait for a GPU before it could read t.
  const at::Tensor t = at::stack(steps).to(at::kDouble);
  const auto correction = [&](double beta) { return at::expm1(t * std::log(beta)).neg_(); };
  const std::vector<at::Tensor> mean_correction = correction(options_.beta1).unbind();
  const std::vector<at::Tensor> root_correction = correction(options_.beta2).sqrt_().unbind();
  // m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²
  at::_foreach_lerp_(mean, gradient, 1 - options_.beta1);
  at::_foreach_mul_(variance, options_.beta2);
  at::_foreach_addcmul_(variance, gradient, gradient, 1 - options_.beta2);
  // m̂ = m / (1 − β₁ᵗ);   v̂ = v / (1 − β₂ᵗ);   r = m̂ / (√v̂ + ε)
  std::vector<at::Tensor> root = at::_foreach_sqrt(variance);
  at::_foreach_div_(root, root_correction);
  at::_foreach_add_(root, options_.eps);
  std::vector<at::Tensor> direction = at::_foreach_div(mean, mean_correction);
  at::_foreach_div_(direction, root);
  // r + λx
  if (options_.weight_decay != 0) at::_foreach_add_(direction, gather(parameters(), group), options_.weight_decay);
  return direction;
}

void Lamb::update(const std::vector<size_t>& group) {
  const std::vector<at::Tensor> parameter = gather(parameters(), group), direction = directions(group);
  // x ← x − η · φ(‖x‖) / ‖r + λx‖ · (r + λx)
  const at::Tensor own = at::stack(at::_foreach_norm(parameter)), other = at::stack(at::_foreach_norm(direction));
  const at::Tensor ratio = at::where(own.gt(0).logical_and(other.gt(0)), own / other, at::ones_like(own));
  shared(ratio);
  at::_foreach_mul_(direction, ratio.unbind());
  at::_foreach_add_(parameter, direction, -lr());
}

}  // namespace spillway
