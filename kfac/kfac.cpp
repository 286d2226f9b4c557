#include "kfac/kfac.h"

#include <utility>

#include "kfac/preconditioner.h"

namespace spillway::kfac {

Kfac::Kfac(const torch::nn::Module& model, KfacOptions options, ddl::Comm comm, ModelStages stages)
    : impl_(std::make_unique<Preconditioner>([&](const KfacOptions& agreed) { return find_layers(model, agreed); },
                                             std::move(options), std::move(comm), std::move(stages))) {}
Kfac::Kfac(const std::vector<ForeignModule>& modules, KfacOptions options, ddl::Comm comm)
    : impl_(std::make_unique<Preconditioner>([&](const KfacOptions& agreed) { return find_layers(modules, agreed); },
                                             std::move(options), std::move(comm), ModelStages{})) {}
Kfac::Kfac(Kfac&&) noexcept = default;
Kfac& Kfac::operator=(Kfac&&) noexcept = default;
Kfac::~Kfac() = default;

void Kfac::watch(const at::Tensor& loss, int64_t batch) {
  impl_->watch(loss, batch, /*again=*/false, /*micro_batch=*/-1);
}
void Kfac::watch_stage(at::TensorList roots, const StageSamples& samples) {
  impl_->watch(roots, samples.count, samples.again, samples.micro_batch);
}
void Kfac::watch_rerun(at::TensorList roots, int64_t batch) {
  impl_->watch_rerun(roots, batch);
}
void Kfac::find_reruns(RerunFinder finder) {
  impl_->find_reruns(std::move(finder));
}
std::vector<SkippedLayer> Kfac::unseen_layers() {
  return impl_->unseen_layers();
}
void Kfac::time_by(Now now) {
  impl_->time_by(std::move(now));
}

void Kfac::defer(bool on) {
  impl_->defer(on);
}
std::vector<RefreshWork> Kfac::refresh_work(int64_t step, int64_t micro_batches) const {
  return impl_->refresh_work(step, micro_batches);
}
void Kfac::run(int64_t step, int64_t micro_batches, size_t index) {
  impl_->run(step, micro_batches, index);
}
bool Kfac::waits(int64_t step, size_t index) const {
  return impl_->waits(step, index);
}
std::vector<double> Kfac::refresh_seconds(int64_t step) const {
  return impl_->refresh_seconds(step);
}
void Kfac::forget_refresh_seconds() {
  impl_->forget_refresh_seconds();
}
bool Kfac::renews(size_t i, int64_t steps) const {
  return impl_->renews(i, steps);
}
const std::vector<at::Tensor>& Kfac::next_inverse(size_t i) const {
  return impl_->next_inverse(i);
}
void Kfac::finish_refreshes() {
  impl_->finish_refreshes();
}
int64_t Kfac::held_peak_bytes() const {
  return impl_->held_peak_bytes();
}

int64_t Kfac::cycle_length() const {
  return impl_->cycle_length();
}
void Kfac::observe_factors(WorkerTimeline::Observer observer) {
  impl_->observe_factors(std::move(observer));
}
void Kfac::listen(MessageListener& listener) {
  impl_->listen(listener);
}
void Kfac::step(double loss_scale) {
  impl_->step(loss_scale);
}
double Kfac::adapt_damping(double loss_before, double loss_after) {
  return impl_->adapt_damping(loss_before, loss_after);
}
void Kfac::discard() {
  impl_->discard();
}

std::string_view Kfac::kind() const {
  return impl_->kind();
}
bool Kfac::updates_factors() const {
  return impl_->updates_factors();
}
bool Kfac::decomposes() const {
  return impl_->decomposes();
}
bool Kfac::launches() const {
  return impl_->launches();
}

const std::vector<Layer>& Kfac::layers() const {
  return impl_->layers();
}
const std::vector<SkippedLayer>& Kfac::left_alone() const {
  return impl_->left_alone();
}
const std::vector<Assignment>& Kfac::assignments() const {
  return impl_->assignments();
}
const KfacOptions& Kfac::options() const {
  return impl_->options();
}
at::Tensor Kfac::factor(size_t i, size_t f) const {
  return impl_->factor(i, f);
}
std::vector<at::Tensor> Kfac::held_factors(size_t i) const {
  return impl_->held_factors(i);
}
const std::vector<at::Tensor>& Kfac::inverse(size_t i) const {
  return impl_->inverse(i);
}
const at::Tensor& Kfac::largest_curvature() const {
  return impl_->largest_curvature();
}
Eigenbasis Kfac::pending_basis(size_t i, size_t f) const {
  return impl_->pending_basis(i, f);
}

void Kfac::resume(const KfacCounters& counters) {
  impl_->resume(counters);
}
FactorBytes Kfac::memory_usage() const {
  return impl_->memory_usage();
}
KfacCounters Kfac::counters() const {
  return impl_->counters();
}
KfacSeconds Kfac::seconds() const {
  return impl_->seconds();
}
KfacFlops Kfac::flops() const {
  return impl_->flops();
}

}  // namespace spillway::kfac
