#include <ATen/ATen.h>

#include "swap/optim/optimizer.h"

namespace spillway {

Adam::Adam(const std::vector<at::Tensor>& parameters, AdamOptions options)
    : Adam(parameters, options, Decay::of_gradient) {}

Adam::Adam(const std::vector<at::Tensor>& parameters, AdamOptions options, Decay decay)
    : Optimizer(parameters, options.lr, options.group_bytes, 2),
      options_(options),
      decay_(decay),
      mean_(make_state()),
      variance_(make_state()),
      steps_(make_steps()) {}

AdamW::AdamW(const std::vector<at::Tensor>& parameters, AdamOptions options)
    : Adam(parameters, options, Decay::of_weight) {}

std::vector<OptimizerState> Adam::state() const {
  return {{"mean", mean_}, {"variance", variance_}, {"steps", steps_}};
}

void Adam::update(const std::vector<size_t>& group) {
  const std::vector<at::Tensor> steps = gather(steps_, group);
  at::_foreach_add_(steps, 1);
  auto fused = [&](auto kernel) {
    kernel(gather(parameters(), group), gradients(group), gather(mean_, group), gather(variance_, group),
           std::vector<at::Tensor>{}, steps, lr(), options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
           /*amsgrad=*/false, /*maximize=*/false, std::nullopt, std::nullopt);
  };
  if (decay_ == Decay::of_weight)
    fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    fused([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

}  // namespace spillway
