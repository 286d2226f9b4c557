#include "kfac/gradient_preconditioner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "kfac/factors/own_operators.h"
#include "kfac/plan/adaptive_damping.h"

namespace spillway::kfac {
namespace {

/// Returns the tensors one behind the other in their first dimension; a single one itself.
at::Tensor beside_each_other(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 ? tensors.front() : at::cat(tensors);
}

}  // namespace

GradientPreconditioner::GradientPreconditioner(const Setup& setup, const std::vector<LayerBatch>& batches,
                                               const LayerInverses& inverses, const LayerDampings& dampings,
                                               Tally& tally)
    : setup_(setup),
      batches_(batches),
      inverses_(inverses),
      tally_(tally),
      scales_(setup, batches, inverses, dampings),
      nu_(at::ones({}, setup.state())),
      product_(at::zeros({}, setup.state())) {}

void GradientPreconditioner::step() {
  sums_.assign(setup_.layers.size(), {});
  preconditioned_.clear();
  {
    Stopwatch watch(tally_.seconds.precondition);
    scales_.begin_step();
    for (size_t b = 0; b < batches_.size(); ++b) precondition_batch(b);
    sum_up();
  }
  for (size_t i = 0; i < sums_.size(); ++i)
    if (sums_[i].defined()) preconditioned_.push_back(i);
  share_gradients();
  clip();
  sums_.clear();
}

void GradientPreconditioner::precondition_batch(size_t b) {
  const LayerBatch& batch = batches_[b];
  const auto has_gradient = [&](size_t i) { return setup_.layers[i].weight.grad().defined(); };
  const bool is_whole = std::ranges::all_of(batch.layers, has_gradient);
  for (size_t i : batch.layers)
    TORCH_CHECK(!has_gradient(i) || !setup_.shape(i).bias || setup_.layers[i].bias.grad().defined(),
                "[kfac.step] layer ", setup_.shape(i).name, " has a gradient for its weight and none for its bias");
  if (!setup_.assignments[batch.layers.front()].is_worker(setup_.rank())) {
    for (size_t i : batch.layers)
      if (has_gradient(i)) sums_[i] = at::zeros({kStepSums}, state_options(setup_.layers[i].weight));
  } else if (is_whole && batch.is_together) {
    precondition_together(b);
  } else if (is_whole && batch.layers.size() == 1) {
    precondition_layer(batch.layers.front(), scales_.of(b));
  } else {
    for (size_t i : batch.layers)
      if (has_gradient(i)) precondition_layer(i, scales_.of_layer(i));
  }
}

// Layers side by side are one layer with more groups. A single one takes the same way, so that the bits of a step do
// not depend on how many layers of a shape a rank preconditions.
void GradientPreconditioner::precondition_together(size_t b) {
  const LayerBatch& batch = batches_[b];
  const int64_t count = std::ssize(batch.layers), elements = batch.shape.gradient_elements();
  const auto type = inverses_.of_batch(b).held.back().scalar_type();
  const bool is_of_other_type = !products_.empty() && products_.back().scalar_type() != type;
  if (is_of_other_type || elements_to_sum_up_ + elements > batch_elements(setup_)) sum_up();
  tally_.flops.precondition += precondition_flops(batch.shape);
  std::vector<at::Tensor> gradients, biases;
  for (size_t i : batch.layers) {
    gradients.push_back(setup_.layers[i].weight.grad());
    if (batch.shape.bias) biases.push_back(setup_.layers[i].bias.grad());
  }
  const LayerGradient raw{beside_each_other(gradients), batch.shape.bias ? beside_each_other(biases) : at::Tensor()};
  const LayerGradient natural = precondition(batch.shape, raw, inverses_.of_batch(b), scales_.of(b));
  const auto rows = [&](const at::Tensor& all) { return all.to(type).reshape({count, -1}); };
  products_.push_back((rows(natural.weight) * rows(raw.weight)).sum(1));
  if (batch.shape.bias) products_.back().add_((rows(natural.bias) * rows(raw.bias)).sum(1));
  at::_foreach_copy_(gradients, natural.weight.chunk(count));
  if (batch.shape.bias) at::_foreach_copy_(biases, natural.bias.chunk(count));
  to_sum_up_.insert(to_sum_up_.end(), batch.layers.begin(), batch.layers.end());
  elements_to_sum_up_ += elements;
}

// Takes the norms of several batches at once, right after their last one, while a budget has their gradients on the
// device.
void GradientPreconditioner::sum_up() {
  if (to_sum_up_.empty()) return;
  std::vector<at::Tensor> parts = std::exchange(products_, {});
  const int64_t count = std::ssize(to_sum_up_);
  if (std::isfinite(setup_.options.norm_clip_in_use())) {
    std::vector<at::Tensor> all;
    for (size_t i : to_sum_up_) all.push_back(setup_.layers[i].weight.grad());
    for (size_t i : to_sum_up_) all.push_back(setup_.layers[i].weight.detach());
    parts.push_back(at::stack(at::_foreach_norm(all, 2, parts.front().scalar_type())).square_());
  } else {
    parts.push_back(at::zeros({2 * count}, parts.front().options()));
  }
  const auto sums = at::cat(parts).view({kStepSums, count}).t().contiguous();
  for (int64_t k = 0; k < count; ++k) sums_[to_sum_up_[static_cast<size_t>(k)]] = sums[k];
  to_sum_up_.clear();
  elements_to_sum_up_ = 0;
}

void GradientPreconditioner::precondition_layer(size_t i, const LayerScales& scales) {
  const auto& [shape, weight, bias] = setup_.layers[i];
  const LayerGradient gradient = gradient_of(i);
  tally_.flops.precondition += precondition_flops(shape);
  const auto natural = precondition(shape, gradient, inverses_.in_use(i), scales);
  const auto take = [](const at::Tensor& v, const at::Tensor& g) {
    auto product = at::dot(v.flatten(), g.to(v.scalar_type()).flatten());
    g.copy_(v);
    return product;
  };
  auto product = take(natural.weight, gradient.weight);
  if (shape.bias) product.add_(take(natural.bias, gradient.bias));
  if (std::isfinite(setup_.options.norm_clip_in_use())) {
    const auto v = natural.weight.flatten(), w = weight.detach().flatten().to(v.scalar_type());
    sums_[i] = at::stack({product, at::dot(v, v), at::dot(w, w)});
  } else {
    const auto zero = at::zeros_like(product);
    sums_[i] = at::stack({product, zero, zero});
  }
}

LayerGradient GradientPreconditioner::gradient_of(size_t i) const {
  const Layer& layer = setup_.layers[i];
  return {layer.weight.grad(), layer.shape.bias ? layer.bias.grad() : at::Tensor()};
}

// All of a rank's layers are preconditioned before the first of them is sent, because a rank that waits for a layer
// computes none of its own. Layers that one worker sends to the same ranks share messages, of kTogether bytes. Messages
// are in the order of their first layers, which is the same on every rank.
void GradientPreconditioner::share_gradients() {
  constexpr int64_t kTogether = 1 << 20;
  struct Message {
    int64_t worker = 0;
    std::vector<int64_t> members;
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
  };
  Stopwatch watch(tally_.seconds.gradient_communicate);
  std::vector<Message> messages;
  std::map<std::pair<int64_t, std::vector<int64_t>>, size_t> last;  // of each worker and members
  for (size_t i : preconditioned_) {
    const Assignment& assignment = setup_.assignments[i];
    const int64_t worker = assignment.worker_of[setup_.rank()];
    const auto members = assignment.served_by(worker);
    if (members.size() < 2) continue;
    const LayerGradient gradient = gradient_of(i);
    const int64_t bytes = gradient.weight.nbytes();
    const auto [known, is_new] = last.try_emplace({worker, members}, messages.size());
    if (is_new || messages[known->second].bytes + bytes > kTogether) {
      known->second = messages.size();
      messages.push_back({.worker = worker, .members = members, .tensors = {}});
    }
    Message& message = messages[known->second];
    message.bytes += bytes;
    message.tensors.insert(message.tensors.end(), {gradient.weight, sums_[i]});
    if (gradient.bias.defined()) message.tensors.push_back(gradient.bias);
  }
  for (const Message& message : messages) setup_.exchange.broadcast_(message.tensors, message.worker, message.members);
}

void GradientPreconditioner::clip() {
  if (preconditioned_.empty() && !setup_.rows_of_stages) return;
  Stopwatch watch(tally_.seconds.precondition);
  const auto now = setup_.options.at(tally_.counters.steps);
  // Σ|⟨V, ∇⟩|, Σ‖V‖², Σ‖W‖². Rank 0's sums are sent to all ranks, because ranks whose threads or processors split sums
  // differently would scale by different ν.
  std::vector<at::Tensor> rows;
  for (size_t i : preconditioned_) rows.push_back(sums_[i]);
  const auto own = rows.empty() ? at::zeros({0, kStepSums}, product_.options()) : at::stack(rows);
  const auto sums = setup_.all_rows(own, preconditioned_).abs().sum(0);
  std::vector<int64_t> everyone(setup_.exchange.world());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  setup_.exchange.broadcast_({sums}, 0, everyone);
  product_.copy_(sums[0]);
  has_product_ = true;
  // ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|)), ρ √(Σ‖W‖² / Σ‖V‖²) / lr)   (SC'20 eq. 18, and norm_clip ρ). A zero sum bounds
  // nothing.
  auto nu = (now.kl_clip / (product_ * (now.lr * now.lr))).sqrt().clamp_max(1);
  if (const double rho = setup_.options.norm_clip_in_use(); std::isfinite(rho)) {
    const auto bound = (sums[2] / sums[1]).sqrt() * (rho / now.lr);
    nu = at::where(sums[1].gt(0).logical_and(sums[2].gt(0)), at::minimum(nu, bound), nu);
  }
  nu_.copy_(nu);
  scale_gradients(nu);
}

// Multiplies the gradients of this step's layers by `nu`, as many of them at once as a batch may have.
void GradientPreconditioner::scale_gradients(const at::Tensor& nu) {
  std::vector<at::Tensor> together;
  int64_t elements = 0;
  for (size_t i : preconditioned_) {
    const int64_t own = setup_.shape(i).gradient_elements();
    if (!together.empty() && elements + own > batch_elements(setup_)) {
      at::_foreach_mul_(std::exchange(together, {}), nu);
      elements = 0;
    }
    const LayerGradient gradient = gradient_of(i);
    together.push_back(gradient.weight);
    if (gradient.bias.defined()) together.push_back(gradient.bias);
    elements += own;
  }
  if (!together.empty()) at::_foreach_mul_(together, nu);
}

double GradientPreconditioner::adapt_damping(double loss_before, double loss_after) {
  const OwnOperators own;
  TORCH_CHECK(std::exchange(has_product_, false),
              "[kfac.adapt_damping] there was no step since the last call, or since the start");
  auto reduction = at::full({1}, loss_before - loss_after, setup_.state());
  setup_.exchange.reduce_(reduction, ddl::Reduction::average);
  const auto taken = setup_.options.at(tally_.counters.steps - 1);
  const double predicted = predicted_reduction(product_.item<double>(), taken.lr * nu_.item<double>());
  const int64_t steps = tally_.counters.steps - std::exchange(tally_.counters.last_adaptation, tally_.counters.steps);
  if (!(predicted > 0)) return std::numeric_limits<double>::quiet_NaN();
  const double rho = reduction.item<double>() / predicted;
  tally_.counters.damping_scale *= damping_change(rho, steps);
  return rho;
}

}  // namespace spillway::kfac
