#include "runtime/training/training_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <stdexcept>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_backend.h"
#include "kfac/kfac.h"
#include "runtime/data/used_cases.h"
#include "runtime/interruption/step_snapshot.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/passes/memory_format.h"
#include "runtime/passes/random_state.h"
#include "runtime/pipeline/exchange.h"
#include "runtime/training/kfac_state.h"
#include "runtime/training/part_options.h"
#include "runtime/training/replicas.h"
#include "runtime/training/whole_state.h"
#include "swap/schedule/schedule.h"

namespace spillway::runtime {
namespace {

constexpr const char* kLossScale = "loss_scale";

/// Replaces the other ranks' sums with rank 0's.
void share_sums(Optimizer& optimizer, const ddl::Comm& comm) {
  std::vector<int64_t> everyone(comm->communicator->size());
  std::iota(everyone.begin(), everyone.end(), int64_t{0});
  optimizer.share_sums([comm, everyone](const at::Tensor& sums) { ddl::broadcast_({sums}, comm, 0, everyone); });
}

/// Throws where a step's loss, the mean of all ranks, is no number.
void require_finite(double loss, int64_t step) {
  if (!std::isfinite(loss))
    throw std::runtime_error(str("[train] the loss of step ", step, " is ", loss,
                                 ": training diverged, and its weights are of no use; try a lower lr"));
}

}  // namespace

TrainingRun::TrainingRun(const RunContext& context, int64_t budget_bytes, double grad_worker_frac,
                         StepRecorder* recorder, TrainRequests* requests)
    : context_(context),
      device_(options_device(context.options)),
      requests_(requests),
      interrupter_(requests, recorder),
      session_(std::make_unique<Session>(session_options(context, budget_bytes, interrupter_, recorder))),
      sampler_(context.split.train, context.options.data.batch, context.copy(), context.copies(), context.options.seed),
      lr_{.lr = context.options.optimizer.lr,
          .warmup_steps = context.options.optimizer.warmup,
          .decays = context.options.optimizer.lr_decay,
          .steps_per_epoch = steps_per_epoch(context),
          .epoch_shift_steps = steps_for(context, context.start.cases_drawn) - context.start.step},
      position_(context.start) {
  const TrainOptions& options = context.options;
  at::manual_seed(options.seed);
  make_model();
  if (options.kfac.enabled) make_kfac(grad_worker_frac);
  const ddl::Comm& same_weights = context.same_weights();
  optimizer_ = make_optimizer(options, model_->module(), kfac_ ? &*kfac_ : nullptr);
  if (same_weights) share_sums(*optimizer_, same_weights);
  if (options.precision.amp == Amp::fp16) scaler_.emplace(options.precision.loss_scaling, device_);
  // Gradients that are reduced beside backward are staged on the host.
  const bool uses_nccl = same_weights && device_.is_cuda() && same_weights->gpus->levels(device_);
  if (same_weights && options.gradients.overlap && !uses_nccl)
    overlapped_.emplace(optimizer_->parameters(), same_weights, gradient_options(options));
  if (context.kernels && overlapped_) overlapped_->listen(session_->messages());
  if (context.kernels && kfac_) kfac_->listen(session_->messages());
  // Factors have a lane of their own, because they travel beside gradients.
  if (recorder && overlapped_) overlapped_->observe(recorder->record_jobs("gradients", "communication"));
  if (recorder && kfac_) kfac_->observe_factors(recorder->record_jobs("factors", "factors"));
  // Weights are the same on every rank; dropout is each rank's own.
  at::manual_seed(first_seed(options, context.rank()));
}

void TrainingRun::make_model() {
  const TrainOptions& options = context_.options;
  const CategoryScope category(Category::weights);
  auto task = make_task(options.model.name, task_options(options, *context_.data));
  if (context_.pipeline) {
    auto pipelined = pipelined_model(context_.pipeline, std::move(task),
                                     {.device = device_, .seed = options.seed, .clock = context_.clock});
    pipelined_ = pipelined.get();
    model_ = std::move(pipelined);
  } else {
    model_ = whole_model(std::move(task));
  }
  if (!device_.is_cpu()) model_->module().to(device_);
  to_memory_format(model_->module(), options.model.layout);
}

void TrainingRun::make_kfac(double grad_worker_frac) {
  const TrainOptions& options = context_.options;
  kfac::KfacOptions kfac = kfac_options(options, lr_, grad_worker_frac);
  kfac.layer_curvature = own_kfac_options(context_, model_->module()).layer_curvature;
  // A step that fp16 leaves out is a step of the run but not of K-FAC, so K-FAC's lr follows the run's position.
  kfac.lr = kfac::StepSchedule([this](int64_t) { return lr_.at(position_.step); });
  kfac_.emplace(model_->module(), std::move(kfac), context_.same_weights(), stages_of(context_));
  if (context_.clock) kfac_->time_by([clock = context_.clock] { return clock->now(); });
  const bool may_wait = kfac_->options().curvature_delay > 0;
  if (may_wait && context_.pipeline && options.pipeline.kfac_work == KfacWork::bubbles)
    in_waits_.emplace(*kfac_, context_.pipeline, context_.comm, context_.start.step);
}

std::vector<TrainingRun::Cases> TrainingRun::next_cases() {
  std::vector<Cases> all(context_.options.optimizer.accumulate);
  for (Cases& cases : all)
    for (int64_t index : sampler_.next()) cases.push_back(context_.data->at(index));
  return all;
}

Batch TrainingRun::to_device(const Cases& cases) const {
  Batch batch = collate(cases);
  const Layout layout = context_.options.model.layout;
  batch.input = batch.input.to(device_).contiguous(memory_format(layout, batch.input.dim()));
  batch.target = batch.target.to(device_);
  return batch;
}

StepWork TrainingRun::work_on(const std::vector<Cases>& cases) const {
  return {.step = position_.step,
          .micro_batches = std::ssize(cases),
          .batch = [this, &cases](int64_t i) { return to_device(cases[i]); },
          .amp = context_.options.precision.amp};
}

bool TrainingRun::leaves(const std::function<void()>& body, std::exception_ptr& failure) {
  if (!requests_) return body(), false;
  const Interrupter::Scope interruptible(interrupter_);
  try {
    body();
    return false;
  } catch (const Interrupted&) {
    return true;
  } catch (const DiskError&) {
    failure = std::current_exception();
    return true;
  }
}

at::Tensor TrainingRun::learn(const std::vector<Cases>& cases, RunStep& outcome) {
  StepWork work = work_on(cases);
  if (scaler_) work.loss_scale = scaler_->scale();
  if (kfac_)
    work.before_backward = [this](at::TensorList roots, const BackwardSamples& samples) {
      kfac_->watch_stage(roots, {samples.count, samples.again, samples.micro_batch});
    };
  if (in_waits_) {
    work.items = in_waits_->items_of(position_.step);
    work.run_extra = [this](const pipe::FilledItem& extra) { in_waits_->run(extra, position_.step); };
  }
  if (overlapped_) work.before_last_backward = [this] { overlapped_->begin(); };
  at::Tensor loss;
  const auto run = [&] { loss = model_->learn(work); };
  // What other ranks wait for must all arrive, so such a step is not left: factors on their way, a pipeline's messages.
  if (pipelined_ || (kfac_ && kfac_->options().overlap_factors && context_.comm))
    run();
  else
    outcome.left = leaves(run, outcome.failure);
  if (in_waits_) in_waits_->run_together(position_.step);
  return loss;
}

RunStep TrainingRun::step() {
  RunStep outcome;
  const auto start = Clock::now();
  const std::vector<Cases> cases = next_cases();
  std::optional<StepSnapshot> before;
  if (requests_) before.emplace(model_->module(), device_);
  try {
    take_step(outcome, cases);
  } catch (const Interrupted&) {
    optimizer_->zero_grad();
    if (kfac_) kfac_->discard();
    before->restore();
    outcome.left = true;
  }
  outcome.seconds = seconds_since(start);
  return outcome;
}

void TrainingRun::take_step(RunStep& outcome, const std::vector<Cases>& cases) {
  outcome.lr = lr_.at(position_.step);
  optimizer_->set_lr(outcome.lr);
  std::optional<RandomState> random;
  if (adapts_damping()) random.emplace(device_);
  outcome.kind = kfac_ ? std::string(kfac_->kind()) : "plain";
  times_.step = position_.step;
  // The step before may have ended with the first plan. Then no step was timed since.
  if (in_waits_ && !context_.kernels && untaken_steps_ > 0 && in_waits_->plans_again(position_.step))
    in_waits_->plan_again(take_cycle_seconds());
  times_.fills_waits = in_waits_ && in_waits_->plans() > 0;
  if (times_.fills_waits) outcome.kind = in_waits_->kind_of_step(position_.step);
  Session::Step scope = session_->step(outcome.kind);
  times_.began = Clock::now();
  const at::Tensor loss = learn(cases, outcome);
  times_.passed = Clock::now();
  const double passed = now();
  average(loss, outcome);
  times_.averaged = Clock::now();
  if (!scaler_) require_finite(outcome.loss, position_.step + 1);
  outcome.skipped = !apply_gradients();
  if (!outcome.skipped) require_finite(outcome.loss, position_.step + 1);  // under fp16 an overflow is no error
  optimizer_->zero_grad();
  times_.updated = Clock::now();
  times_.finish_step();
  scope.finish();
  if (random && !outcome.skipped) adapt_damping(cases, *random, loss);
  if (const swap::Schedule* schedule = session_->schedule(outcome.kind))
    outcome.bound_seconds = schedule->bound_seconds;
  update_seconds_ += now() - passed;
  ++untaken_steps_;
  ++position_.step;
  const bool may_plan = in_waits_ && !context_.kernels && in_waits_->plans() == 0;
  if (may_plan && position_.step % in_waits_->cycle() == 0) in_waits_->plan(take_cycle_seconds());
  position_.cases_drawn += cases_per_step(context_);
}

CycleSeconds TrainingRun::take_cycle_seconds() {
  const auto steps = static_cast<double>(std::exchange(untaken_steps_, 0));
  return {pipelined_->take_stage_seconds(), std::exchange(update_seconds_, 0) / steps};
}

bool TrainingRun::adapts_damping() const {
  const int64_t every = context_.options.kfac.damping_adaptation;
  return kfac_ && every > 0 && (position_.step + 1) % every == 0;
}

void TrainingRun::adapt_damping(const std::vector<Cases>& cases, const RandomState& random, const at::Tensor& loss) {
  const double before = of_copy(loss.defined() ? std::optional(loss.item<double>()) : std::nullopt);
  kfac_->adapt_damping(before, loss_again(cases, random));
}

double TrainingRun::loss_again(const std::vector<Cases>& cases, const RandomState& random) {
  const StepSnapshot now(model_->module(), device_);
  random.restore();
  Session::Step scope = session_->step("adapt");
  const std::optional<double> loss = model_->loss(work_on(cases));
  scope.finish();
  now.restore();
  return of_copy(loss);
}

double TrainingRun::of_copy(std::optional<double> value) const {
  if (!pipelined_) return value.value_or(0);
  double sum = 0;
  for (int direction = 0; direction < context_.pipeline->plan.directions(); ++direction) {
    double known = value.value_or(0);
    const int last = context_.pipeline->place_of_last_stage(direction);
    ddl::broadcast(*context_.pipeline->of_copy, std::as_writable_bytes(std::span(&known, 1)), last);
    sum += known;
  }
  return sum;
}

bool TrainingRun::apply_gradients() {
  const double scale = scaler_ ? scaler_->scale() : 1;
  if (scaler_ && !scaler_->unscale(gradients())) {
    if (kfac_) kfac_->discard();
    return false;
  }
  if (kfac_) kfac_->step(scale);
  if (context_.options.optimizer.clip_norm > 0) clip_gradients();
  optimizer_->step();
  return true;
}

void TrainingRun::clip_gradients() {
  at::Tensor norms = optimizer_->gradient_norms();
  if (pipelined_) {
    // Each parameter of the model counts once, in the model's order, so that the norm's bits are those of one rank.
    std::vector<int64_t> numbers;
    for (const at::Tensor& parameter : optimizer_->parameters()) numbers.push_back(pipelined_->number_of(parameter));
    norms = gather_rows(*context_.pipeline->of_copy, norms.unsqueeze(1), numbers).squeeze(1);
  }
  optimizer_->clip_gradients(context_.options.optimizer.clip_norm, norms);
}

std::vector<at::Tensor> TrainingRun::gradients() const {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : optimizer_->parameters())
    if (parameter.grad().defined()) all.push_back(parameter.grad());
  return all;
}

StepRequests TrainingRun::take_requests() {
  if (!requests_) return {};
  return {.stop = requests_->stop, .checkpoint = requests_->checkpoint.exchange(false)};
}

void TrainingRun::average(const at::Tensor& loss, RunStep& outcome) {
  outcome.requested = take_requests();
  if (context_.comm)
    join(loss, outcome);
  else if (!outcome.left)
    outcome.loss = loss.item<double>();
  if (outcome.left) throw Interrupted("[train] the step was left");
}

void TrainingRun::join(const at::Tensor& loss, RunStep& outcome) {
  at::NoGradGuard no_grad;
  const ddl::Comm& same_weights = context_.same_weights();
  if (overlapped_) {
    if (!overlapped_->begun()) overlapped_->begin();
    overlapped_->finish();
  } else if (same_weights) {
    complete_gradients(optimizer_->parameters(), same_weights);
  }
  std::vector<at::Tensor> tensors = gradients();
  gradient_bytes_ = 0;
  for (const at::Tensor& gradient : tensors) gradient_bytes_ += gradient.nbytes();
  if (overlapped_) tensors.clear();
  // Running statistics are averaged too, because every rank saw other cases and all ranks must stay the same.
  for (const at::Tensor& buffer : model_->module().buffers())
    if (buffer.is_floating_point()) tensors.push_back(buffer);
  const at::Tensor mean =
      loss.defined() ? loss.detach().to(at::kFloat) : at::zeros({}, at::TensorOptions(device_).dtype(at::kFloat));
  const auto flag = [&](bool set) { return at::scalar_tensor(set ? 1.f : 0.f, mean.options()); };
  const at::Tensor status =
      at::stack({mean, flag(outcome.requested.stop), flag(outcome.requested.checkpoint), flag(outcome.left)});
  const auto start = Clock::now();
  if (!pipelined_) tensors.push_back(status);
  if (same_weights) ddl::allreduce_(tensors, same_weights, ddl::Reduction::average);
  if (pipelined_) {
    pipelined_->sum_shared_gradients();
    // One rank of each copy has a loss.
    ddl::allreduce_({status}, context_.comm, ddl::Reduction::sum);
    status.div_(context_.copies());
  }
  after_backward_seconds_ += seconds_since(start);
  const at::Tensor joined = status.cpu();
  outcome.loss = joined[0].item<double>();
  outcome.requested = {joined[1].item<float>() > 0, joined[2].item<float>() > 0};
  outcome.left = joined[3].item<float>() > 0;
}

double TrainingRun::gradient_seconds() const {
  return after_backward_seconds_ +
         (overlapped_ ? std::chrono::duration<double>(overlapped_->totals().busy).count() : 0);
}

double TrainingRun::exposed_gradient_seconds() const {
  return after_backward_seconds_ +
         (overlapped_ ? std::chrono::duration<double>(overlapped_->totals().exposed).count() : 0);
}

std::optional<double> TrainingRun::measure(const Cases& cases) {
  return model_->metric(to_device(cases), context_.options.precision.amp);
}

Validation TrainingRun::validate() {
  // Ranks may have cases of other sizes, and different numbers of them.
  const ddl::Busy busy(context_.comm ? context_.comm->communicator.get() : nullptr);
  at::Tensor sums = at::zeros({3});  // of the metric, of cases, and of ranks that left
  Validation outcome;
  const std::vector<int64_t>& cases = context_.split.validation;
  const auto run = [&] {
    for (size_t i = 0; i < cases.size(); ++i) {
      if (!measures_on(i, context_.copy(), context_.copies())) continue;
      const Cases on_host{context_.data->at(cases[i])};
      Session::Step scope = session_->step("validate");
      const std::optional<double> value = measure(on_host);
      scope.finish();
      if (value) sums.add_(at::tensor({static_cast<float>(*value), 1.f, 0.f}));
    }
  };
  if (pipelined_)
    run();
  else if (leaves(run, outcome.failure))
    sums.add_(at::tensor({0.f, 0.f, 1.f}));
  if (context_.comm) ddl::allreduce_({sums}, context_.comm, ddl::Reduction::sum);
  outcome.metric = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  outcome.left = sums[2].item<double>() > 0;
  return outcome;
}

std::vector<StateTensor> TrainingRun::weights() {
  std::vector<StateTensor> all;
  for (const auto& p : model_->module().named_parameters()) all.emplace_back(p.key(), p.value());
  for (const auto& b : model_->module().named_buffers()) all.emplace_back(b.key(), b.value());
  return all;
}

std::vector<StateTensor> TrainingRun::state() {
  std::vector<StateTensor> all = weights();
  const auto names = model_->module().named_parameters().keys();
  for (const OptimizerState& kind : optimizer_->state())
    for (size_t i = 0; i < names.size(); ++i)
      if (kind.tensors[i].defined()) all.emplace_back(str("optimizer/", kind.name, "/", names[i]), kind.tensors[i]);
  if (kfac_) add_kfac_state(*kfac_, context_, all);
  if (scaler_) all.emplace_back(kLossScale, scaler_->pack());
  return all;
}

std::string TrainingRun::weights_sha256() {
  if (!pipelined_) return runtime::weights_sha256(model_->module());
  const ddl::Busy busy(context_.comm->communicator.get());
  return runtime::weights_sha256(whole_state(weights(), context_), context_.comm);
}

void TrainingRun::save() {
  if (kfac_) kfac_->finish_refreshes();
  const TrainOptions& options = context_.options;
  write_checkpoint(options.checkpoint.folder, options, position_, whole_state(state(), context_), context_.comm);
}

void TrainingRun::resume() {
  const TrainOptions& options = context_.options;
  if (kfac_ && context_.keeps_refresh) {
    // K-FAC's counters tell what else it has.
    const std::vector<StateTensor> counters = kfac_counters(*kfac_);
    read_checkpoint(options.checkpoint.folder, options, position_, counters, context_.comm);
    resume_kfac(*kfac_, context_, counters);
  }
  std::vector<StateTensor> all = state();
  if (!context_.keeps_refresh) name_next_inverses(options.checkpoint.folder, all);
  read_checkpoint(options.checkpoint.folder, options, position_, all, context_.comm);
  if (kfac_) resume_kfac(*kfac_, context_, all);
  if (scaler_) scaler_->unpack(all.back().held);
  sampler_.skip(position_.cases_drawn);
}

int64_t TrainingRun::parameters() const {
  return count_parameters(model_->module(), context_);
}

}  // namespace spillway::runtime
