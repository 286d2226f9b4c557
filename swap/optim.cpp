#include "swap/optim.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "swap/storage_page.h"

namespace spillway {
namespace {

/// A gradient is born in some backward operator, as an activation like any other; this is where it becomes a gradient.
struct CountAsGradient final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& parameter) override {
    if (parameter.grad().defined()) categorize(parameter.grad(), Category::gradients);
  }
};

std::vector<std::vector<size_t>> group_parameters(const std::vector<at::Tensor>& parameters, int64_t group_bytes,
                                                  int64_t copies) {
  std::vector<std::vector<size_t>> groups;
  int64_t held = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t bytes = static_cast<int64_t>(parameters[i].nbytes()) * copies;
    const bool fits = !groups.empty() && held + bytes <= group_bytes &&
                      parameters[i].scalar_type() == parameters[groups.back().front()].scalar_type();
    if (!fits) {
      groups.emplace_back();
      held = 0;
    }
    groups.back().push_back(i);
    held += bytes;
  }
  return groups;
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr, int64_t group_bytes, int64_t state_per_parameter)
    : parameters_(std::move(parameters)),
      lr_(lr),
      groups_(group_parameters(parameters_, group_bytes, 2 + state_per_parameter)) {
  TORCH_CHECK(lr > 0, "[optimizer] lr is ", lr, "; it must be positive");
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK(parameter.is_leaf() && parameter.requires_grad(),
                "[optimizer] parameters must be leaves that require a gradient; got one of shape ", parameter.sizes());
    categorize(parameter, Category::weights);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<CountAsGradient>());
  }
}

void Optimizer::step() {
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  std::vector<size_t> with_gradient;
  for (const std::vector<size_t>& group : groups_) {
    with_gradient.clear();
    for (size_t i : group)
      if (parameters_[i].grad().defined()) with_gradient.push_back(i);
    if (!with_gradient.empty()) update(with_gradient);
  }
}

void Optimizer::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

std::vector<at::Tensor> Optimizer::gather(const std::vector<at::Tensor>& tensors,
                                          const std::vector<size_t>& group) const {
  std::vector<at::Tensor> gathered;
  gathered.reserve(group.size());
  for (size_t i : group) gathered.push_back(tensors[i]);
  return gathered;
}

std::vector<at::Tensor> Optimizer::gradients(const std::vector<size_t>& group) const {
  std::vector<at::Tensor> gathered;
  gathered.reserve(group.size());
  for (size_t i : group) gathered.push_back(parameters_[i].grad());
  return gathered;
}

std::vector<at::Tensor> Optimizer::make_state() const {
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  std::vector<at::Tensor> state;
  state.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) state.push_back(at::zeros_like(parameter));
  return state;
}

Sgd::Sgd(std::vector<at::Tensor> parameters, SgdOptions options)
    : Optimizer(std::move(parameters), options.lr, options.group_bytes, options.momentum > 0 ? 1 : 0),
      options_(options) {
  TORCH_CHECK(options.momentum >= 0 && options.momentum < 1, "[optimizer] momentum is ", options.momentum,
              "; it must be in [0, 1)");
  if (options_.momentum > 0) momentum_ = make_state();
  started_.assign(this->parameters().size(), false);
}

void Sgd::update(const std::vector<size_t>& group) {
  // The first gradient becomes the momentum; parameters that start late go alone, so that others do not start again.
  std::vector<size_t> parts[2];
  for (size_t i : group) parts[started_[i] ? 1 : 0].push_back(i);
  for (bool started : {false, true}) {
    const std::vector<size_t>& part = parts[started];
    if (part.empty()) continue;
    at::_fused_sgd_(gather(parameters(), part), gradients(part),
                    options_.momentum > 0 ? gather(momentum_, part) : std::vector<at::Tensor>{}, options_.weight_decay,
                    options_.momentum, lr(), /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/!started);
    for (size_t i : part) started_[i] = true;
  }
}

Adam::Adam(std::vector<at::Tensor> parameters, AdamOptions options)
    : Optimizer(std::move(parameters), options.lr, options.group_bytes, 2),
      options_(options),
      mean_(make_state()),
      variance_(make_state()) {
  CategoryScope category(Category::optimizer);
  for (size_t i = 0; i < this->parameters().size(); ++i) steps_.push_back(at::zeros({}));
}

std::vector<at::Tensor> Adam::state() const {
  std::vector<at::Tensor> all = mean_;
  all.insert(all.end(), variance_.begin(), variance_.end());
  all.insert(all.end(), steps_.begin(), steps_.end());
  return all;
}

void Adam::update(const std::vector<size_t>& group) {
  const std::vector<at::Tensor> steps = gather(steps_, group);
  at::_foreach_add_(steps, 1);
  at::_fused_adam_(gather(parameters(), group), gradients(group), gather(mean_, group), gather(variance_, group), {},
                   steps, lr(), options_.beta1, options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                   /*maximize=*/false);
}

}  // namespace spillway
