#include "swap/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/distinct_tensors.h"
#include "swap/gate/storage_page.h"

namespace spillway {
namespace {

/// Recounts a gradient as a gradient. Some backward operator makes it, and until here it counts as an activation like
/// any other.
struct CountAsGradient final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& parameter) override {
    if (parameter.grad().defined()) swap::categorize(parameter.grad(), Category::gradients);
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

std::vector<at::Tensor> grads_of(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& group) {
  std::vector<at::Tensor> gathered;
  gathered.reserve(group.size());
  for (size_t i : group) gathered.push_back(parameters[i].grad());
  return gathered;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

}  // namespace

Optimizer::Optimizer(const std::vector<at::Tensor>& parameters, double lr, int64_t group_bytes,
                     int64_t tensors_per_parameter)
    : parameters_(distinct_tensors(parameters)),
      lr_(lr),
      groups_(group_parameters(parameters_, group_bytes, 2 + tensors_per_parameter)) {
  TORCH_CHECK(lr > 0, "[optimizer] lr is ", lr, "; it must be positive");
  for (const at::Tensor& parameter : parameters_) {
    TORCH_CHECK(parameter.is_leaf() && parameter.requires_grad(),
                "[optimizer] parameters must be leaves that require a gradient; got one of shape ", parameter.sizes());
    swap::categorize(parameter, Category::weights);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<CountAsGradient>());
  }
}

template <class Visit>
void Optimizer::for_each_group(Visit visit) {
  std::vector<size_t> with_gradient;
  for (const std::vector<size_t>& group : groups_) {
    with_gradient.clear();
    for (size_t i : group)
      if (parameters_[i].grad().defined()) with_gradient.push_back(i);
    if (!with_gradient.empty()) visit(with_gradient);
  }
}

void Optimizer::step() {
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  for_each_group([&](const std::vector<size_t>& group) { update(group); });
}

at::Tensor Optimizer::gradient_norms() {
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  std::vector<at::Tensor> norms(parameters_.size());
  for_each_group([&](const std::vector<size_t>& group) {
    const auto of_group = at::stack(at::_foreach_norm(grads_of(parameters_, group))).to(at::kDouble).unbind();
    for (size_t k = 0; k < group.size(); ++k) norms[group[k]] = of_group[k];
  });
  for (size_t i = 0; i < norms.size(); ++i)
    if (!norms[i].defined()) norms[i] = at::zeros({}, parameters_[i].options().dtype(at::kDouble).requires_grad(false));
  return norms.empty() ? at::zeros({0}, at::kDouble) : at::stack(norms);
}

double Optimizer::clip_gradients(double max_norm, const at::Tensor& norms) {
  TORCH_CHECK(max_norm > 0, "[optimizer] max_norm is ", max_norm, "; it must be positive");
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  const at::Tensor whole = norms.norm();
  shared(whole);
  const double norm = whole.item<double>();
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1)
    for_each_group([&](const std::vector<size_t>& group) { at::_foreach_mul_(grads_of(parameters_, group), factor); });
  return norm;
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
  std::vector<at::Tensor> gathered = grads_of(parameters_, group);
  for (size_t i = 0; i < group.size(); ++i)
    if (const at::Tensor& parameter = parameters_[group[i]]; !same_layout(gathered[i], parameter))
      gathered[i] = at::empty_like(parameter).copy_(gathered[i]);
  return gathered;
}

std::vector<at::Tensor> Optimizer::make_steps(StepsReader reader) const {
  CategoryScope category(Category::optimizer);
  std::vector<at::Tensor> steps;
  for (const at::Tensor& parameter : parameters_)
    steps.push_back(at::zeros({}, at::TensorOptions(reader == StepsReader::host ? at::kCPU : parameter.device())));
  return steps;
}

std::vector<at::Tensor> Optimizer::make_state() const {
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  std::vector<at::Tensor> state;
  state.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) state.push_back(at::zeros_like(parameter));
  return state;
}

}  // namespace spillway
