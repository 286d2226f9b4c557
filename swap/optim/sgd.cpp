#include <ATen/ATen.h>

#include "swap/optim/optimizer.h"

namespace spillway {

Sgd::Sgd(const std::vector<at::Tensor>& parameters, SgdOptions options)
    : Optimizer(parameters, options.lr, options.group_bytes, options.momentum > 0 ? 1 : 0), options_(options) {
  TORCH_CHECK(options.momentum >= 0 && options.momentum < 1, "[optimizer] momentum is ", options.momentum,
              "; it must be in [0, 1)");
  TORCH_CHECK(!options.nesterov || options.momentum > 0,
              "[optimizer] nesterov looks ahead along the momentum, which is 0; it must be in (0, 1)");
  if (options_.momentum > 0) momentum_ = make_state();
}

std::vector<OptimizerState> Sgd::state() const {
  if (momentum_.empty()) return {};
  return {{"momentum", momentum_}};
}

void Sgd::update(const std::vector<size_t>& group) {
  at::_fused_sgd_(gather(parameters(), group), gradients(group),
                  momentum_.empty() ? std::vector<at::Tensor>{} : gather(momentum_, group), options_.weight_decay,
                  options_.momentum, lr(), /*dampening=*/0, options_.nesterov, /*maximize=*/false,
                  /*is_first_step=*/false);
}

}  // namespace spillway
