#include <ATen/ATen.h>

#include <algorithm>

#include "swap/optim/optimizer.h"

namespace spillway {

CombinedOptimizer::CombinedOptimizer(const std::vector<at::Tensor>& parameters,
                                     std::vector<std::unique_ptr<Optimizer>> parts, std::optional<double> lr)
    : Optimizer(parameters, lr ? *lr : parts.at(0)->lr(), kDefaultGroupBytes, 0), parts_(std::move(parts)) {
  const std::vector<at::Tensor>& all = this->parameters();
  std::vector<bool> taken(all.size());
  for (const auto& part : parts_) {
    relative_lr_.push_back(part->lr() / this->lr());
    std::vector<size_t>& positions = position_.emplace_back();
    for (const at::Tensor& parameter : part->parameters()) {
      const auto found = std::ranges::find_if(all, [&](const at::Tensor& other) { return other.is_same(parameter); });
      TORCH_CHECK(found != all.end(), "[optimizer] a part has a parameter of shape ", parameter.sizes(),
                  " that is not among the parameters");
      positions.push_back(found - all.begin());
      TORCH_CHECK(!taken[positions.back()], "[optimizer] two parts have the parameter of shape ", parameter.sizes());
      taken[positions.back()] = true;
    }
  }
  const auto missing = std::ranges::find(taken, false);
  TORCH_CHECK(missing == taken.end(), "[optimizer] no part has the parameter of shape ",
              all[missing - taken.begin()].sizes());
}

void CombinedOptimizer::step() {
  for (const auto& part : parts_) part->step();
}

// step() is the parts', so nothing is left to be updated here.
void CombinedOptimizer::update(const std::vector<size_t>&) {}

void CombinedOptimizer::share_sums(const std::function<void(const at::Tensor&)>& share) {
  Optimizer::share_sums(share);  // for clip_gradients()
  for (const auto& part : parts_) part->share_sums(share);
}

void CombinedOptimizer::set_lr(double lr) {
  Optimizer::set_lr(lr);
  for (size_t k = 0; k < parts_.size(); ++k) parts_[k]->set_lr(lr * relative_lr_[k]);
}

std::vector<OptimizerState> CombinedOptimizer::state() const {
  std::vector<OptimizerState> all;
  for (size_t k = 0; k < parts_.size(); ++k) {
    for (const auto& [name, tensors] : parts_[k]->state()) {
      auto kind = std::ranges::find(all, name, &OptimizerState::name);
      if (kind == all.end()) kind = all.insert(all.end(), {name, std::vector<at::Tensor>(parameters().size())});
      for (size_t i = 0; i < tensors.size(); ++i) kind->tensors[position_[k][i]] = tensors[i];
    }
  }
  return all;
}

}  // namespace spillway
