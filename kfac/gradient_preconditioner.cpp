#include "kfac/gradient_preconditioner.h"

#include <ATen/ATen.h>

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

GradientPreconditioner::GradientPreconditioner(const Setup& setup, const LayerInverses& inverses,
                                               const LayerDampings& dampings, Tally& tally)
    : setup_(setup),
      inverses_(inverses),
      dampings_(dampings),
      tally_(tally),
      versions_(setup.layers.size(), -1),
      nu_(at::ones({}, setup.state())),
      product_(at::zeros({}, setup.state())) {
  if (setup.options.method == Method::eigen && !setup.options.precompute_outer)
    mean_curvatures_ = at::zeros({std::ssize(setup.layers)}, setup.state());
}

void GradientPreconditioner::step() {
  sums_.clear();
  preconditioned_.clear();
  set_gammas();
  for (size_t i = 0; i < setup_.layers.size(); ++i)
    if (setup_.layers[i].weight.grad().defined()) precondition_layer(i);
  share_gradients();
  clip();
  gammas_.reset();
}

// Returns true for a layer whose γ set_gammas() makes; precondition() makes that of others.
bool GradientPreconditioner::has_gamma(size_t i) const {
  const auto& held = inverses_.in_use(i).held;
  return mean_curvatures_.defined() && !setup_.shape(i).bias_apart() && !held.empty() &&
         held.back().scalar_type() == mean_curvatures_.scalar_type();
}

// Sets γ of all such layers at once, because a step of small layers takes as long as its operators are many. Mean
// curvatures change with the inverses alone.
void GradientPreconditioner::set_gammas() {
  if (!mean_curvatures_.defined()) return;
  Stopwatch watch(tally_.seconds.precondition);
  for (size_t i = 0; i < setup_.layers.size(); ++i) {
    if (versions_[i] == inverses_.version(i) || !has_gamma(i)) continue;
    const auto& shape = setup_.shape(i);
    mean_curvatures_[static_cast<int64_t>(i)].copy_(mean_curvature(shape, inverses_.in_use(i).values(shape)));
    versions_[i] = inverses_.version(i);
  }
  gammas_ = gamma_of(mean_curvatures_, dampings_.now().of_all());
}

void GradientPreconditioner::precondition_layer(size_t i) {
  const auto& [shape, weight, bias] = setup_.layers[i];
  TORCH_CHECK(!shape.bias || bias.grad().defined(), "[kfac.step] layer ", shape.name,
              " has a gradient for its weight and none for its bias");
  const LayerGradient gradient = gradient_of(i);
  at::Tensor sums;  // ⟨V, ∇⟩, ‖V‖², ‖W‖²
  if (setup_.assignments[i].is_worker(setup_.rank())) {
    Stopwatch watch(tally_.seconds.precondition);
    tally_.flops.precondition += precondition_flops(shape);
    auto damping = dampings_.now().of(i);
    if (has_gamma(i)) damping.gamma = gammas_[static_cast<int64_t>(i)];
    const auto natural = precondition(shape, gradient, inverses_.in_use(i), damping);
    const auto take = [](const at::Tensor& v, const at::Tensor& g) {
      auto product = at::dot(v.flatten(), g.to(v.scalar_type()).flatten());
      g.copy_(v);
      return product;
    };
    auto product = take(natural.weight, gradient.weight);
    if (shape.bias) product.add_(take(natural.bias, gradient.bias));
    if (std::isfinite(setup_.options.norm_clip_in_use())) {
      const auto v = natural.weight.flatten(), w = weight.detach().flatten().to(v.scalar_type());
      sums = at::stack({product, at::dot(v, v), at::dot(w, w)});
    } else {
      const auto zero = at::zeros_like(product);
      sums = at::stack({product, zero, zero});
    }
  } else {
    sums = at::zeros({kStepSums}, state_options(weight));
  }
  sums_.push_back(std::move(sums));
  preconditioned_.push_back(i);
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
  for (size_t k = 0; k < preconditioned_.size(); ++k) {
    const Assignment& assignment = setup_.assignments[preconditioned_[k]];
    const int64_t worker = assignment.worker_of[setup_.rank()];
    const auto members = assignment.served_by(worker);
    if (members.size() < 2) continue;
    const LayerGradient gradient = gradient_of(preconditioned_[k]);
    const int64_t bytes = gradient.weight.nbytes();
    const auto [known, is_new] = last.try_emplace({worker, members}, messages.size());
    if (is_new || messages[known->second].bytes + bytes > kTogether) {
      known->second = messages.size();
      messages.push_back({.worker = worker, .members = members, .tensors = {}});
    }
    Message& message = messages[known->second];
    message.bytes += bytes;
    message.tensors.insert(message.tensors.end(), {gradient.weight, sums_[k]});
    if (gradient.bias.defined()) message.tensors.push_back(gradient.bias);
  }
  for (const Message& message : messages) setup_.exchange.broadcast_(message.tensors, message.worker, message.members);
}

void GradientPreconditioner::clip() {
  if (sums_.empty() && !setup_.rows_of_stages) return;
  Stopwatch watch(tally_.seconds.precondition);
  const auto now = setup_.options.at(tally_.counters.steps);
  // Σ|⟨V, ∇⟩|, Σ‖V‖², Σ‖W‖². Rank 0's sums are sent to all ranks, because ranks whose threads or processors split sums
  // differently would scale by different ν.
  const auto own = sums_.empty() ? at::zeros({0, kStepSums}, product_.options()) : at::stack(sums_);
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
  for (size_t i : preconditioned_) {
    setup_.layers[i].weight.grad().mul_(nu);
    if (setup_.shape(i).bias) setup_.layers[i].bias.grad().mul_(nu);
  }
  sums_.clear();
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
