// The phases of Kfac::step().
#include <ATen/ATen.h>

#include "kfac/statistics.h"

namespace spillway::kfac {

// --- factors --------------------------------------------------------------------------------------------------------

void Kfac::commit_factors(double loss_scale) {
  // In groups that share messages, so that no group is large.
  auto& layers = statistics_->layers;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    std::vector<at::Tensor> bucket;
    while (end < layers.size() && (end == begin || bytes_of(bucket) < ddl::kFusionBytes)) {
      Stopwatch watch(seconds_.factor_compute);
      const auto& fresh = layers[end++].finish(watched_batch_, loss_scale);
      bucket.insert(bucket.end(), fresh.begin(), fresh.end());
    }
    {
      Stopwatch watch(seconds_.factor_communicate);
      exchange_.average_(bucket);
    }
    Stopwatch watch(seconds_.factor_compute);
    bucket.clear();
    for (size_t i = begin; i < end; ++i) layers[i].commit(options_.decay, dropped_);
  }
  watched_batch_ = 0;
}

// --- eigenbases -----------------------------------------------------------------------------------------------------

void Kfac::decompose_owned() {
  Stopwatch watch(seconds_.decompose);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t f = 0; f < eigenbases_[i].size(); ++f)
      if (assignments_[i].owners[f] == exchange_.rank()) {
        flops_.decompose += decomposition_flops(layers_[i].shape, layers_[i].shape.factors()[f]);
        if (!decompose(factors(i)[f], eigenbases_[i][f])) ++counters_.failed_decompositions;
      }
}

void Kfac::share_eigenbases() {
  Stopwatch watch(seconds_.eigenbasis_communicate);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t f = 0; f < eigenbases_[i].size(); ++f) {
      const auto& [vectors, values] = eigenbases_[i][f];
      exchange_.broadcast_({vectors, values}, assignments_[i].owners[f], assignments_[i].workers);
    }
}

// --- gradients ------------------------------------------------------------------------------------------------------

void Kfac::precondition_layers() {
  dots_.clear();
  preconditioned_.clear();
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].weight.grad().defined()) precondition_layer(i);
}

void Kfac::precondition_layer(size_t i) {
  const auto& [shape, weight, bias] = layers_[i];
  TORCH_CHECK(!shape.bias || bias.grad().defined(), "[kfac.step] layer ", shape.name,
              " has a gradient for its weight and none for its bias");
  const LayerGradient gradient{weight.grad(), shape.bias ? bias.grad() : at::Tensor()};
  auto dot = at::zeros({1}, state_options(weight));
  if (assignments_[i].is_worker(exchange_.rank())) {
    Stopwatch watch(seconds_.precondition);
    flops_.precondition += precondition_flops(shape);
    const auto natural = precondition(shape, gradient, eigenbases_[i], {options_.relative_damping, options_.damping});
    const auto take = [&](const at::Tensor& v, const at::Tensor& g) {
      dot.add_(at::dot(v.flatten(), g.to(v.scalar_type()).flatten()));
      g.copy_(v);
    };
    take(natural.weight, gradient.weight);
    if (shape.bias) take(natural.bias, gradient.bias);
  }
  const int64_t worker = assignments_[i].worker_of[static_cast<size_t>(exchange_.rank())];
  if (const auto members = assignments_[i].served_by(worker); members.size() > 1) {
    Stopwatch watch(seconds_.gradient_communicate);
    std::vector<at::Tensor> tensors{gradient.weight, dot};
    if (shape.bias) tensors.push_back(gradient.bias);
    exchange_.broadcast_(tensors, worker, members);
  }
  dots_.push_back(std::move(dot));
  preconditioned_.push_back(i);
}

void Kfac::clip() {
  if (dots_.empty()) return;
  Stopwatch watch(seconds_.precondition);
  const double kappa = options_.kl_clip.at(counters_.steps), lr = options_.lr.at(counters_.steps);
  TORCH_CHECK(kappa > 0 && lr >= 0, "[kfac.step] at step ", counters_.steps, " kl_clip = ", kappa, " and lr = ", lr,
              ": the first must be above 0, the other not below");
  // ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|)))   (SC'20 eq. 18); a zero sum gives 1
  const auto quadratic = at::cat(dots_).abs().sum() * (lr * lr);
  const auto nu = (kappa / quadratic).sqrt().clamp_max(1);
  for (size_t i : preconditioned_) {
    layers_[i].weight.grad().mul_(nu);
    if (layers_[i].shape.bias) layers_[i].bias.grad().mul_(nu);
  }
  dots_.clear();
}

}  // namespace spillway::kfac
