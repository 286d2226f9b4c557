#include "kfac/preconditioner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kfac/comm/agreed_options.h"
#include "kfac/factors/own_operators.h"
#include "kfac/plan/step_work.h"

namespace spillway::kfac {
namespace {

void check_layers(const std::vector<Layer>& layers, const KfacOptions& options, int64_t world) {
  for (const auto& [shape, weight, bias] : layers) {
    TORCH_CHECK(weight.device() == layers.front().weight.device(), "[kfac] layer ", shape.name, " is on ",
                weight.device(), ", ", layers.front().shape.name, " on ", layers.front().weight.device(),
                ": one device is served");
    TORCH_CHECK(world == 1 || weight.scalar_type() == at::kFloat, "[kfac] layer ", shape.name, " is ",
                weight.scalar_type(), "; ", world, " ranks exchange float32 only");
    for (const auto& factor : shape.factors())
      if (options.staleness > 0 && factor.side > BackgroundSolver::kMaxSide)
        throw BadRequest(str("[kfac] layer ", shape.name, " has a factor of side ", factor.side,
                             ", but with staleness sides go up to ", BackgroundSolver::kMaxSide,
                             "; lower max_linear_dim or set staleness to 0"));
  }
}

/// Returns one stack for each factor that the rank decomposes.
std::vector<MatrixStack> stacks_of(const std::vector<FactorId>& owned, const std::vector<Layer>& layers) {
  std::vector<MatrixStack> all;
  for (const auto& [i, f] : owned) {
    const auto [role, side, count, rank] = layers[i].shape.factors()[f];
    const auto type = state_options(layers[i].weight).dtype();
    all.push_back({count, side, static_cast<int64_t>(type.itemsize())});
  }
  return all;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.nbytes();
  return sum;
}

/// Returns each layer's place among the model's, or among the layers themselves where these are the model's.
std::vector<int64_t> numbers_in(const std::vector<LayerShape>& model, const std::vector<Layer>& layers) {
  std::vector<int64_t> numbers;
  for (const Layer& layer : layers) {
    const auto found = std::ranges::find(model, layer.shape.name, &LayerShape::name);
    TORCH_CHECK(model.empty() || found != model.end(), "[kfac] layer ", layer.shape.name, " is none of the model's ",
                model.size(), " layers");
    numbers.push_back(model.empty() ? std::ssize(numbers) : found - model.begin());
  }
  return numbers;
}

}  // namespace

Preconditioner::Preconditioner(const LayerFinder& find, KfacOptions options, ddl::Comm comm, ModelStages stages)
    : options_(std::move(options)),
      exchange_(std::move(comm)),
      rows_of_stages_(std::move(stages.all_rows)),
      cycle_(0),
      cycle_of_model_(0),
      staged_(std::make_shared<StagedFactors>()) {
  const OwnOperators own;
  exchange_.check_together([&] {
    options_.validate();
    auto found = find(options_);
    layers_ = std::move(found.layers);
    left_alone_ = std::move(found.left_alone);
    check_layers(layers_, options_, exchange_.world());
  });
  numbers_ = numbers_in(stages.layers, layers_);
  staged_->numbers = numbers_;
  const auto shapes = shapes_of(layers_);
  options_ = agreed_options(std::move(options_), layers_, exchange_);
  TORCH_CHECK(!layers_.empty(), "[kfac] no layer of the model can be preconditioned: ", left_alone_.size(),
              " modules were left alone");
  assignments_ = assign_stage(shapes, stages.layers, numbers_, exchange_.world(), options_);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t f = 0; f < assignments_[i].owners.size(); ++f)
      if (assignments_[i].owners[f] == exchange_.rank()) owned_.push_back({i, f});
  cycle_ = options_.layer_curvature.empty() ? UpdateCycle(layers_.size()) : UpdateCycle(options_.layer_curvature);
  TORCH_CHECK(stages.layers.empty() || stages.curvature.empty() == options_.layer_curvature.empty(),
              "[kfac] a stage has layer_curvature where the model has it: ", stages.curvature.size(),
              " layers have it");
  cycle_of_model_ = stages.curvature.empty() ? cycle_ : UpdateCycle(stages.curvature);
  for (const auto& set : cycle_.sets())
    buckets_.push_back(factor_buckets(shapes, assignments_, options_.factor_dtype, set));
  make_state();
  if (options_.overlap_factors && !buckets_.front().empty())
    staged_->early = std::make_unique<OverlappedReduction>(buckets_.front(), staged_->layers, assignments_,
                                                           options_.factor_dtype, exchange_.comm());
  if (options_.staleness > 0) background_ = std::make_unique<BackgroundSolver>(stacks_of(owned_, layers_));
  if (options_.damping_scope_in_use() == DampingScope::network)
    largest_curvature_ = at::zeros({std::ssize(layers_)}, state_options(layers_.front().weight));
  if (options_.method == Method::eigen && !options_.precompute_outer) {
    mean_curvatures_ = at::zeros({std::ssize(layers_)}, state_options(layers_.front().weight));
    knows_mean_curvature_.resize(layers_.size());
  }
  dropped_ = at::zeros({}, layers_.front().weight.options().dtype(at::kLong));
  failed_ = at::zeros_like(dropped_);
  product_ = at::zeros({}, state_options(layers_.front().weight));
  nu_ = at::ones_like(product_);
}

void Preconditioner::make_state() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& [shape, weight, bias] = layers_[i];
    staged_->layers.emplace_back(
        shape, state_options(weight), PatchWork(options_.patch_workspace_bytes, options_.shifted_products),
        options_.convention, assignments_[i].holds_factors(exchange_.rank()), options_.samples_of(i));
    inverses_.push_back(assignments_[i].is_worker(exchange_.rank())
                            ? LayerInverse::identity(shape, state_options(weight))
                            : LayerInverse{});
  }
  next_.resize(layers_.size());
  for (int64_t step = 0; options_.curvature_delay > 0 && step < cycle_.length(); ++step)
    late_kinds_.push_back(str("refresh ", step));
}

void Preconditioner::observe_factors(WorkerTimeline::Observer observer) {
  if (staged_->early) staged_->early->observe(std::move(observer));
}

void Preconditioner::listen(MessageListener& listener) {
  if (staged_->early) staged_->early->listen(listener);
}

void Preconditioner::discard() {
  const OwnOperators own;
  const bool is_open = !open_.empty() && open_.back().step == counters_.steps;
  TORCH_CHECK(!is_open || !open_.back().is_averaged(), "[kfac.discard] step ", counters_.steps,
              " cannot be forgotten: its statistics are averaged already");
  if (staged_->early) staged_->early->discard(staged_->layers);
  // Statistics of earlier steps wait for their refreshes. They are of other layers.
  for (size_t i : due_layers()) {
    staged_->layers[i].discard();
    staged_->drop_held(i);
  }
  if (is_open) open_.pop_back();
  forget_watches();
}

void Preconditioner::step(double loss_scale) {
  const OwnOperators own;
  TORCH_CHECK(std::isfinite(loss_scale) && loss_scale > 0, "[kfac.step] loss_scale = ", loss_scale,
              " is outside (0, inf)");
  const bool model_updates = updates_factors(cycle_of_model_), model_decomposes = decomposes(cycle_of_model_);
  if (updates_factors()) {
    take_reruns();
    TORCH_CHECK(watched_, "[kfac.step] step ", counters_.steps,
                " updates the factors: call watch(loss, batch) before backward");
    check_samples();
    if (!is_late(counters_.steps)) commit_factors(loss_scale);
    forget_watches();
  }
  if (model_updates) {
    if (factors_are_due(counters_, options_)) counters_.last_factor_step = counters_.steps;
    ++counters_.factor_updates;
  }
  if (is_late(counters_.steps)) step_late(loss_scale);
  const bool is_due = decomposes() && !is_late(counters_.steps);
  if (is_due) note_curvature(due_layers());
  set_damping();
  if (is_due) {
    renew_owned();
    share_inverses();
  }
  if (model_decomposes) {
    const int64_t delay = is_late(counters_.steps) ? options_.curvature_delay : 0;
    if (!options_.layer_curvature.empty()) counters_.last_decomposition_step = counters_.steps - delay;
    ++counters_.decompositions;
  }
  if (launches()) start_decomposition();
  precondition_layers();
  clip();
  if (options_.curvature_delay == 0) curvatures_.reset();
  gammas_.reset();
  ++counters_.steps;
}

at::Tensor Preconditioner::factor(size_t i, size_t f) const {
  const auto& running = staged_->layers[i].running();
  return running.empty() ? at::Tensor() : running.at(f).load();
}

std::vector<at::Tensor> Preconditioner::held_factors(size_t i) const {
  std::vector<at::Tensor> held;
  for (const auto& [entries, diagonal] : staged_->layers[i].running()) {
    held.push_back(entries);
    if (diagonal.defined()) held.push_back(diagonal);
  }
  return held;
}

void Preconditioner::resume(const KfacCounters& counters) {
  const OwnOperators own;
  counters_ = counters;
  dropped_.fill_(counters.dropped_factors);
  failed_.fill_(counters.failed_decompositions);
  has_product_ = false;
  was_seen_.clear();
  for (size_t i = 0; i < layers_.size(); ++i) {
    staged_->layers[i].discard();
    staged_->drop_held(i);
  }
  std::fill(knows_mean_curvature_.begin(), knows_mean_curvature_.end(), false);
  if (options_.curvature_delay > 0) resume_refreshes();
}

FactorBytes Preconditioner::memory_usage() const {
  FactorBytes bytes;
  if (staged_->early) bytes.messages = staged_->early->bytes();
  if (background_) bytes.background = background_->bytes();
  for (size_t i = 0; i < layers_.size(); ++i) {
    bytes.factors += bytes_of(held_factors(i));
    bytes.staged += bytes_of(staged_->layers[i].staged());
  }
  for (const auto& inverse : inverses_) bytes.eigenbases += bytes_of(inverse.held);
  return bytes;
}

KfacCounters Preconditioner::counters() const {
  auto counters = counters_;
  counters.dropped_factors = dropped_.item<int64_t>();
  counters.failed_decompositions = failed_.item<int64_t>();
  return counters;
}

KfacFlops Preconditioner::flops() const {
  auto flops = flops_;
  for (const auto& layer : staged_->layers) flops.factor_compute += layer.flops();
  return flops;
}

KfacSeconds Preconditioner::seconds() const {
  auto seconds = seconds_;
  seconds.factor_compute += staged_->seconds;
  return seconds;
}

}  // namespace spillway::kfac
