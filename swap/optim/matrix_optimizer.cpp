#include "swap/optim/matrix_optimizer.h"

#include <ATen/ATen.h>

namespace spillway {

MatrixOptimizer::MatrixOptimizer(const std::vector<at::Tensor>& parameters, double lr, double weight_decay,
                                 int64_t group_bytes, int64_t tensors_per_parameter)
    : Optimizer(parameters, lr, group_bytes, tensors_per_parameter), weight_decay_(weight_decay) {
  for (const at::Tensor& parameter : this->parameters())
    TORCH_CHECK(parameter.dim() >= 2, "[optimizer] parameters must have two dimensions or more; got one of shape ",
                parameter.sizes(), ", which AdamW can update");
}

void MatrixOptimizer::update(const std::vector<size_t>& group) {
  for (size_t i : group) {
    const at::Tensor& parameter = parameters()[i];
    const at::Tensor step = direction(i, as_matrix(parameter.grad()));
    if (!step.defined()) continue;
    shared(step);
    if (weight_decay_ != 0) parameter.mul_(1 - lr() * weight_decay_);
    parameter.add_(step.reshape(parameter.sizes()), -lr());
  }
}

}  // namespace spillway
