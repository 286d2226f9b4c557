#include "kfac/kfac.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "kfac/factors/own_operators.h"
#include "kfac/make_setup.h"
#include "kfac/parts.h"
#include "kfac/plan/step_work.h"

namespace spillway::kfac {
namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

std::unique_ptr<KfacParts> make_parts(const LayerFinder& find, KfacOptions options, ddl::Comm comm,
                                      const ModelStages& stages, RerunFinder find_reruns) {
  const OwnOperators own;
  return std::make_unique<KfacParts>(make_setup(find, std::move(options), std::move(comm), stages),
                                     std::move(find_reruns));
}

}  // namespace

// --- a step ----------------------------------------------------------------------------------------------------------

Kfac::Kfac(const torch::nn::Module& model, KfacOptions options, ddl::Comm comm, const ModelStages& stages)
    : parts_(make_parts([&](const KfacOptions& agreed) { return find_layers(model, agreed); }, std::move(options),
                        std::move(comm), stages, nullptr)) {}
Kfac::Kfac(const std::vector<ForeignModule>& modules, KfacOptions options, ddl::Comm comm, RerunFinder find_reruns)
    : parts_(make_parts([&](const KfacOptions& agreed) { return find_layers(modules, agreed); }, std::move(options),
                        std::move(comm), ModelStages{}, std::move(find_reruns))) {}
Kfac::Kfac(Kfac&&) noexcept = default;
Kfac& Kfac::operator=(Kfac&&) noexcept = default;
Kfac::~Kfac() = default;

void Kfac::watch(const at::Tensor& loss, int64_t batch) {
  parts_->watch.watch(loss, {.count = batch, .micro_batch = -1});
}
void Kfac::watch_stage(at::TensorList roots, const StageSamples& samples) {
  parts_->watch.watch(roots, samples);
}
void Kfac::watch_rerun(at::TensorList roots, int64_t batch) {
  parts_->watch.watch_rerun(roots, batch);
}
std::vector<SkippedLayer> Kfac::unseen_layers() {
  return parts_->watch.unseen_layers();
}

void Kfac::step(double loss_scale) {
  const OwnOperators own;
  TORCH_CHECK(std::isfinite(loss_scale) && loss_scale > 0, "[kfac.step] loss_scale = ", loss_scale,
              " is outside (0, inf)");
  auto& [setup, plan, tally, staged, batches, inverses, refresh, watch, gradients] = *parts_;
  auto& counters = tally.counters;
  const StepWork of_model = plan.work_of_model(counters);
  const bool was_asked_for = factors_are_due(counters, setup.options);
  refresh.step(watch.samples(), loss_scale);
  watch.forget();
  if (of_model.updates_factors) {
    if (was_asked_for) counters.last_factor_step = counters.steps;
    ++counters.factor_updates;
  }
  if (of_model.decomposes) {
    const int64_t delay = plan.is_late(counters.steps) ? setup.options.curvature_delay : 0;
    if (!setup.options.layer_curvature.empty()) counters.last_decomposition_step = counters.steps - delay;
    ++counters.decompositions;
  }
  gradients.step();
  refresh.end_step();
  ++counters.steps;
}

double Kfac::adapt_damping(double loss_before, double loss_after) {
  return parts_->gradients.adapt_damping(loss_before, loss_after);
}
void Kfac::discard() {
  parts_->discard();
}

StepWork Kfac::work() const {
  return parts_->plan.work(parts_->tally.counters);
}
const std::vector<Layer>& Kfac::layers() const {
  return parts_->setup.layers;
}
const std::vector<SkippedLayer>& Kfac::left_alone() const {
  return parts_->setup.left_alone;
}
const KfacOptions& Kfac::options() const {
  return parts_->setup.options;
}
KfacCounters Kfac::counters() const {
  return parts_->counters();
}

KfacUsage Kfac::usage() const {
  const auto& [setup, plan, tally, staged, batches, inverses, refresh, watch, gradients] = *parts_;
  KfacUsage usage{.bytes = {}, .seconds = tally.seconds, .flops = tally.flops};
  usage.seconds.factor_compute += staged->seconds;
  usage.bytes.scales = gradients.scale_bytes();
  if (staged->early) usage.bytes.messages = staged->early->bytes();
  usage.bytes.background = refresh.background_bytes();
  for (size_t i = 0; i < setup.layers.size(); ++i) {
    usage.bytes.factors += bytes_of(state().held_factors(i));
    usage.bytes.staged += bytes_of(staged->layers[i].staged());
    usage.bytes.eigenbases += bytes_of(inverses.in_use(i).held);
    usage.flops.factor_compute += staged->layers[i].flops();
  }
  return usage;
}

KfacRefreshes Kfac::refreshes() const {
  return KfacRefreshes(*parts_);
}
KfacState Kfac::state() const {
  return KfacState(*parts_);
}

// --- refreshes -------------------------------------------------------------------------------------------------------

void KfacRefreshes::defer(bool on) {
  parts_->refresh.defer(on);
}
void KfacRefreshes::time_by(Now now) {
  parts_->refresh.time_by(std::move(now));
}
int64_t KfacRefreshes::cycle_length() const {
  return parts_->setup.cycle.length();
}
std::vector<RefreshWork> KfacRefreshes::work(int64_t step, int64_t micro_batches) const {
  return parts_->plan.is_late(step) ? parts_->plan.pieces(step, micro_batches) : std::vector<RefreshWork>();
}
void KfacRefreshes::run(int64_t step, int64_t micro_batches, size_t index) {
  parts_->refresh.run(step, micro_batches, index);
}
bool KfacRefreshes::waits(int64_t step, size_t index) const {
  return parts_->refresh.waits(step, index);
}
void KfacRefreshes::finish() {
  parts_->refresh.finish();
}
std::vector<double> KfacRefreshes::seconds(int64_t step) const {
  return parts_->refresh.seconds(step);
}
void KfacRefreshes::forget_seconds() {
  parts_->refresh.forget_seconds();
}
int64_t KfacRefreshes::held_peak_bytes() const {
  return parts_->staged->held_peak_bytes;
}
void KfacRefreshes::observe(WorkerTimeline::Observer observer) {
  if (parts_->staged->early) parts_->staged->early->observe(std::move(observer));
}
void KfacRefreshes::listen(MessageListener& listener) {
  if (parts_->staged->early) parts_->staged->early->listen(listener);
}

// --- state -----------------------------------------------------------------------------------------------------------

const std::vector<Assignment>& KfacState::assignments() const {
  return parts_->setup.assignments;
}
at::Tensor KfacState::factor(size_t i, size_t f) const {
  return parts_->staged->average({i, f});
}
std::vector<at::Tensor> KfacState::held_factors(size_t i) const {
  std::vector<at::Tensor> held;
  for (const auto& [entries, diagonal] : parts_->staged->layers[i].running()) {
    held.push_back(entries);
    if (diagonal.defined()) held.push_back(diagonal);
  }
  return held;
}
const std::vector<at::Tensor>& KfacState::inverse(size_t i) const {
  return parts_->inverses.in_use(i).held;
}
bool KfacState::renews(size_t i, int64_t steps) const {
  return parts_->plan.renews(i, steps);
}
const std::vector<at::Tensor>& KfacState::next_inverse(size_t i) const {
  return parts_->inverses.next(i).held;
}
const at::Tensor& KfacState::largest_curvature() const {
  return parts_->refresh.dampings().largest();
}
Eigenbasis KfacState::pending_basis(size_t i, size_t f) const {
  return parts_->refresh.pending_basis({i, f});
}
void KfacState::resume(const KfacCounters& counters) {
  parts_->resume(counters);
}

}  // namespace spillway::kfac
