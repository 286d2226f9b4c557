// The phases of Preconditioner::step().
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "kfac/comm/reduce_factors.h"
#include "kfac/factors/own_operators.h"
#include "kfac/inverse/eigenbasis_refresh.h"
#include "kfac/inverse/truncated_eigenbasis.h"
#include "kfac/plan/adaptive_damping.h"
#include "kfac/preconditioner.h"

namespace spillway::kfac {

// --- factors --------------------------------------------------------------------------------------------------------

// Refuses a number of samples that no layer has. Only backward tells how many positions there are.
void Preconditioner::check_samples() const {
  const auto wanted = options_.factor_samples.positions();
  if (!wanted || counters_.factor_updates > 0) return;
  int64_t most = 0;
  for (const auto& layer : staged_->layers) most = std::max(most, layer.positions());
  const auto of_ranks = exchange_.gather({static_cast<double>(most)});
  most = static_cast<int64_t>(*std::max_element(of_ranks.begin(), of_ranks.end()));
  if (rows_of_stages_) {  // another stage's layers may have more
    const auto own = at::full({1, 1}, most, at::TensorOptions(at::kLong));
    most = all_rows(own, {0}).max().item<int64_t>();
  }
  if (most > 0 && *wanted > most)
    throw BadRequest(str("[kfac.options] factor_samples = ", *wanted, " is outside 1 to ", most,
                         ", the most positions that a layer has"));
}

void Preconditioner::commit_factors(double loss_scale) {
  if (staged_->early) return commit_early_factors(loss_scale);
  for (const auto& [layers, bucket] : average_groups(due_set()))
    commit_layers(layers, bucket, watched_batch_, loss_scale);
}

// Finishes the layers' new factors, reduces those of a bucket, and takes them into the running averages.
void Preconditioner::commit_layers(const std::vector<size_t>& members, const FactorBucket* bucket, int64_t samples,
                                   double loss_scale) {
  auto& layers = staged_->layers;
  {
    Stopwatch watch(seconds_.factor_compute);
    for (size_t i : members)
      if (assignments_[i].stages_factors(exchange_.rank())) layers[i].finish(samples, loss_scale);
  }
  if (bucket) {
    Stopwatch watch(seconds_.factor_communicate);
    reduce_factors(*bucket, layers, assignments_, samples, options_.factor_dtype, exchange_);
  }
  Stopwatch watch(seconds_.factor_compute);
  for (size_t i : members) layers[i].commit(options_.decay, dropped_);
}

// Finishes and commits the reductions that started during backward, in the order in which backward met their layers.
void Preconditioner::commit_early_factors(double loss_scale) {
  auto& layers = staged_->layers;
  const auto& buckets = buckets_.front();
  for (size_t b = buckets.size(); b-- > 0;) {
    {
      Stopwatch watch(seconds_.factor_communicate);
      staged_->early->finish(b, layers);
    }
    Stopwatch watch(seconds_.factor_compute);
    for (size_t i : buckets[b].layers) {
      // The loss scale was not known when the factors were sent.
      if (loss_scale != 1) layers[i].staged().back().div_(loss_scale).div_(loss_scale);
      layers[i].commit(options_.decay, dropped_);
    }
  }
}

// --- eigenbases and inverses ----------------------------------------------------------------------------------------

// Takes the layers' mean curvatures into the largest ones. A factor's owner knows its trace.
void Preconditioner::note_curvature(const std::vector<size_t>& layers) {
  if (!largest_curvature_.defined()) return;
  Stopwatch watch(seconds_.decompose);
  std::vector<bool> due(layers_.size());
  for (size_t i : layers) due[i] = true;
  auto means = at::zeros({std::ssize(layers_), kMaxFactors}, largest_curvature_.options());
  for (const auto& [i, f] : owned_) {
    if (!due[i]) continue;
    const auto factors = layers_[i].shape.factors();
    const auto of_layer = means[static_cast<int64_t>(i)];
    const auto at = static_cast<int64_t>(f);
    of_layer[at].copy_(mean_eigenvalue(factors[f], staged_->layers[i].running()[f].traces()));
    if (f + 1 == factors.size()) of_layer.narrow(0, at + 1, kMaxFactors - at - 1).fill_(1);
  }
  if (exchange_.world() > 1) exchange_.reduce_(means.view(-1), ddl::Reduction::sum);
  largest_curvature_.copy_(at::maximum(largest_curvature_, means.prod(1)));
}

// Sets what the layers' dampings of this step have in common.
void Preconditioner::set_damping() {
  const auto now = options_.at(counters_.steps);
  const double scale = counters_.damping_scale;
  damping_ = {now.relative_damping * scale, now.damping ? std::optional(*now.damping * scale) : std::nullopt};
  if (!largest_curvature_.defined()) return;
  // Roots are multiplied, because a product of two small curvatures may be zero.
  const auto roots = largest_curvature_.sqrt();
  std::vector<size_t> every(layers_.size());
  std::iota(every.begin(), every.end(), size_t{0});
  curvatures_ = roots * all_rows(roots.unsqueeze(1), every).max();
}

Damping Preconditioner::damping(size_t i) const {
  auto damping = current_ ? current_->damping : damping_;
  const auto& curvatures = current_ ? current_->curvatures : curvatures_;
  if (curvatures.defined()) damping.curvature = curvatures[static_cast<int64_t>(i)];
  return damping;
}

void Preconditioner::renew_owned() {
  if (options_.staleness > 0 && counters_.last_decomposition_step >= 0) return adopt_decomposition();
  decompose_owned();
  counters_.last_decomposition_step = counters_.steps;
}

void Preconditioner::decompose_owned() {
  for (const auto& group : renewal_groups(due_set(), exchange_.rank())) renew(group);
}

void Preconditioner::renew(const std::vector<FactorId>& group) {
  Stopwatch watch(seconds_.decompose);
  const auto& [i, f] = group.front();
  if (options_.method == Method::eigen && options_.warm_start == 0 && !layers_[i].shape.factors()[f].is_truncated())
    decompose_together(group);
  else
    decompose_factor(i, f);
}

void Preconditioner::decompose_together(const std::vector<FactorId>& group) {
  std::vector<at::Tensor> matrices;
  std::vector<Eigenbasis> bases;
  for (const auto& [i, f] : group) {
    const auto& shape = layers_[i].shape;
    flops_.decompose += decomposition_flops(shape, shape.factors()[f]);
    matrices.push_back(factor(i, f));
    bases.push_back(renewed(i).basis(shape, f));
  }
  const auto done = decompose(matrices, bases);
  for (size_t g = 0; g < group.size(); ++g)
    if (!done[g]) keep_eigenvectors(group[g].layer, group[g].factor);
}

void Preconditioner::decompose_factor(size_t i, size_t f) {
  const auto& shape = layers_[i].shape;
  flops_.decompose += decomposition_flops(shape, shape.factors()[f]);
  const auto& statistics = staged_->layers[i];
  if (options_.method != Method::eigen)
    return invert_factor(renewed(i), shape, statistics.averages(), f, damping(i), failed_);
  if (shape.factors()[f].is_truncated()) return follow_factor(i, f);
  // The errors of a layer's factors add up.
  const double tolerance = options_.warm_start / static_cast<double>(shape.factors().size());
  at::Tensor delta;
  if (tolerance > 0) delta = factor_damping(shape, statistics.averages(), f, damping(i));
  const auto outcome = refresh(factor(i, f), renewed(i).basis(shape, f), delta, tolerance);
  counters_.warm_starts += outcome == Refreshed::rescaled;
  if (outcome == Refreshed::kept_last) keep_eigenvectors(i, f);
}

void Preconditioner::follow_factor(size_t i, size_t f) {
  const auto basis = renewed(i).basis(layers_[i].shape, f);
  const bool is_first = counters_.decompositions == 0;
  if (is_first) randomize(basis);
  if (!iterate_subspace(factor(i, f), basis, is_first ? kFirstSubspaceIterations : 1)) keep_eigenvectors(i, f);
}

void Preconditioner::keep_eigenvectors(size_t i, size_t f) {
  failed_.add_(1);
  rescale_fresh_values(factor(i, f), renewed(i), layers_[i].shape, f);
}

// G's owner gets the other owners' eigenvalues and forms the reciprocal of their products.
void Preconditioner::gather_reciprocal(size_t i) {
  const auto& [shape, weight, bias] = layers_[i];
  const auto& owners = assignments_[i].owners;
  auto& inverse = renewed(i);
  const int64_t rank = exchange_.rank(), root = owners.back();
  for (size_t f = 0; f < owners.size(); ++f)
    if (owners[f] != root && (rank == owners[f] || rank == root))
      exchange_.broadcast_({inverse.basis(shape, f).values}, owners[f],
                           {std::min(owners[f], root), std::max(owners[f], root)});
  if (rank == root) form_reciprocal(inverse, shape, damping(i));
  inverse.fresh_values.clear();
}

void Preconditioner::share_inverses() {
  for (size_t i : due_layers()) share_inverse(i);
}

void Preconditioner::share_inverse(size_t i) {
  Stopwatch watch(seconds_.eigenbasis_communicate);
  if (options_.precompute_outer) gather_reciprocal(i);
  const auto tensors = inverse_tensors(layers_[i].shape);
  const auto& held = renewed(i).held;
  for (size_t t = 0, end = 0; t < held.size(); t = end) {  // tensors from one owner travel together
    std::vector<at::Tensor> message;
    for (; end < held.size() && tensors[end].factor == tensors[t].factor; ++end) message.push_back(held[end]);
    exchange_.broadcast_(message, assignments_[i].owners[tensors[t].factor], assignments_[i].workers);
  }
}

// --- gradients ------------------------------------------------------------------------------------------------------

void Preconditioner::precondition_layers() {
  sums_.clear();
  preconditioned_.clear();
  set_gammas();
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].weight.grad().defined()) precondition_layer(i);
  share_gradients();
}

// Returns true for a layer whose γ set_gammas() makes; precondition() makes that of others.
bool Preconditioner::has_gamma(size_t i) const {
  const auto& held = inverses_[i].held;
  return mean_curvatures_.defined() && !layers_[i].shape.bias_apart() && !held.empty() &&
         held.back().scalar_type() == mean_curvatures_.scalar_type();
}

// Sets γ of all such layers at once, because a step of small layers takes as long as its operators are many. Mean
// curvatures change with the inverses alone.
void Preconditioner::set_gammas() {
  if (!mean_curvatures_.defined()) return;
  Stopwatch watch(seconds_.precondition);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (knows_mean_curvature_[i] || !has_gamma(i)) continue;
    const auto& shape = layers_[i].shape;
    mean_curvatures_[static_cast<int64_t>(i)].copy_(mean_curvature(shape, inverses_[i].values(shape)));
    knows_mean_curvature_[i] = true;
  }
  Damping damping = damping_;
  damping.curvature = curvatures_;
  gammas_ = gamma_of(mean_curvatures_, damping);
}

void Preconditioner::precondition_layer(size_t i) {
  const auto& [shape, weight, bias] = layers_[i];
  TORCH_CHECK(!shape.bias || bias.grad().defined(), "[kfac.step] layer ", shape.name,
              " has a gradient for its weight and none for its bias");
  const LayerGradient gradient = gradient_of(i);
  at::Tensor sums;  // ⟨V, ∇⟩, ‖V‖², ‖W‖²
  if (assignments_[i].is_worker(exchange_.rank())) {
    Stopwatch watch(seconds_.precondition);
    flops_.precondition += precondition_flops(shape);
    auto damping = this->damping(i);
    if (has_gamma(i)) damping.gamma = gammas_[static_cast<int64_t>(i)];
    const auto natural = precondition(shape, gradient, inverses_[i], damping);
    const auto take = [](const at::Tensor& v, const at::Tensor& g) {
      const auto product = at::dot(v.flatten(), g.to(v.scalar_type()).flatten());
      g.copy_(v);
      return product;
    };
    auto product = take(natural.weight, gradient.weight);
    if (shape.bias) product.add_(take(natural.bias, gradient.bias));
    if (std::isfinite(options_.norm_clip_in_use())) {
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

LayerGradient Preconditioner::gradient_of(size_t i) const {
  const Layer& layer = layers_[i];
  return {layer.weight.grad(), layer.shape.bias ? layer.bias.grad() : at::Tensor()};
}

// All of a rank's layers are preconditioned before the first of them is sent, because a rank that waits for a layer
// computes none of its own. Layers that one worker sends to the same ranks share messages, of kTogether bytes. Messages
// are in the order of their first layers, which is the same on every rank.
void Preconditioner::share_gradients() {
  constexpr int64_t kTogether = 1 << 20;
  struct Message {
    int64_t worker = 0;
    std::vector<int64_t> members;
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
  };
  Stopwatch watch(seconds_.gradient_communicate);
  std::vector<Message> messages;
  std::map<std::pair<int64_t, std::vector<int64_t>>, size_t> last;  // of each worker and members
  for (size_t k = 0; k < preconditioned_.size(); ++k) {
    const Assignment& assignment = assignments_[preconditioned_[k]];
    const int64_t worker = assignment.worker_of[exchange_.rank()];
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
  for (const Message& message : messages) exchange_.broadcast_(message.tensors, message.worker, message.members);
}

at::Tensor Preconditioner::all_rows(const at::Tensor& rows, const std::vector<size_t>& layers) const {
  if (!rows_of_stages_) return rows;
  std::vector<int64_t> numbers;
  for (size_t i : layers) numbers.push_back(numbers_[i]);
  return rows_of_stages_(rows, numbers);
}

void Preconditioner::clip() {
  if (sums_.empty() && !rows_of_stages_) return;
  Stopwatch watch(seconds_.precondition);
  const auto now = options_.at(counters_.steps);
  // Σ|⟨V, ∇⟩|, Σ‖V‖², Σ‖W‖². Rank 0's sums are sent to all ranks, because ranks whose threads or processors split sums
  // differently would scale by different ν.
  const auto own = sums_.empty() ? at::zeros({0, kStepSums}, product_.options()) : at::stack(sums_);
  const auto sums = all_rows(own, preconditioned_).abs().sum(0);
  std::vector<int64_t> everyone(exchange_.world());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  exchange_.broadcast_({sums}, 0, everyone);
  product_.copy_(sums[0]);
  has_product_ = true;
  // ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|)), ρ √(Σ‖W‖² / Σ‖V‖²) / lr)   (SC'20 eq. 18, and norm_clip ρ). A zero sum bounds
  // nothing.
  auto nu = (now.kl_clip / (product_ * (now.lr * now.lr))).sqrt().clamp_max(1);
  if (const double rho = options_.norm_clip_in_use(); std::isfinite(rho)) {
    const auto bound = (sums[2] / sums[1]).sqrt() * (rho / now.lr);
    nu = at::where(sums[1].gt(0).logical_and(sums[2].gt(0)), at::minimum(nu, bound), nu);
  }
  nu_.copy_(nu);
  for (size_t i : preconditioned_) {
    layers_[i].weight.grad().mul_(nu);
    if (layers_[i].shape.bias) layers_[i].bias.grad().mul_(nu);
  }
  sums_.clear();
}

double Preconditioner::adapt_damping(double loss_before, double loss_after) {
  const OwnOperators own;
  TORCH_CHECK(std::exchange(has_product_, false),
              "[kfac.adapt_damping] there was no step since the last call, or since the start");
  auto reduction = at::full({1}, loss_before - loss_after, state_options(layers_.front().weight));
  exchange_.reduce_(reduction, ddl::Reduction::average);
  const auto taken = options_.at(counters_.steps - 1);
  const double predicted = predicted_reduction(product_.item<double>(), taken.lr * nu_.item<double>());
  const int64_t steps = counters_.steps - std::exchange(counters_.last_adaptation, counters_.steps);
  if (!(predicted > 0)) return std::numeric_limits<double>::quiet_NaN();
  const double rho = reduction.item<double>() / predicted;
  counters_.damping_scale *= damping_change(rho, steps);
  return rho;
}

}  // namespace spillway::kfac
