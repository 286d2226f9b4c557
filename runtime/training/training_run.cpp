#include "runtime/training/training_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/busy.h"
#include "ddl/torch/comm.h"
#include "runtime/data/used_cases.h"
#include "runtime/interruption/step_snapshot.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/passes/memory_format.h"
#include "runtime/passes/random_state.h"
#include "runtime/training/part_options.h"
#include "runtime/training/whole_state.h"
#include "swap/schedule/schedule.h"

namespace spillway::runtime {
namespace {

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
  at::manual_seed(context.options.seed);
  make_model();
  PipelineExecutor* const stages = pipelined_ ? &pipelined_->model() : nullptr;
  torch::nn::Module& module = model_->module();
  update_ = std::make_unique<WeightUpdate>(context, module, stages, lr_, grad_worker_frac,
                                           [this] { return lr_.at(position_.step); });
  fill_waits();
  gradients_ = std::make_unique<GradientExchange>(context, module, update_->parameters(), stages);
  if (context.kernels) {
    gradients_->listen(session_->messages());
    update_->listen(session_->messages());
  }
  if (recorder) {
    gradients_->record(*recorder);
    update_->record(*recorder);
  }
  // Weights are the same on every rank; dropout is each rank's own.
  at::manual_seed(first_seed(context.options, context.rank()));
}

void TrainingRun::make_model() {
  const TrainOptions& options = context_.options;
  const CategoryScope category(Category::weights);
  auto task = make_task(options.model.name, task_options(options, *context_.data));
  if (context_.pipeline) {
    auto stages = pipeline_executor(context_.pipeline, std::move(task),
                                    {.device = device_, .seed = options.seed, .clock = context_.clock});
    const Now now = context_.clock ? Now([clock = context_.clock] { return clock->now(); }) : steady_now();
    pipelined_ = std::make_unique<PipelinedSteps>(context_.pipeline, *stages, now);
    model_ = std::move(stages);
  } else {
    model_ = whole_model(std::move(task));
  }
  if (!device_.is_cpu()) model_->module().to(device_);
  to_memory_format(model_->module(), options.model.layout);
}

void TrainingRun::fill_waits() {
  kfac::Kfac* const kfac = update_->kfac();
  const bool may_wait = kfac && kfac->options().curvature_delay > 0;
  if (may_wait && pipelined_ && context_.options.pipeline.kfac_work == KfacWork::bubbles)
    pipelined_->fill_waits(*kfac, context_.comm, context_.start.step, /*plans=*/!context_.kernels);
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
  update_->prepare(work);
  work.before_last_backward = gradients_->before_last_backward();
  // Messages that other ranks wait for must all arrive, so such a step is not left.
  if (pipelined_) return pipelined_->learn(work);
  if (update_->sends_in_backward()) return model_->learn(work);
  at::Tensor loss;
  outcome.left = leaves([&] { loss = model_->learn(work); }, outcome.failure);
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
    update_->discard();
    before->restore();
    outcome.left = true;
  }
  outcome.seconds = seconds_since(start);
  return outcome;
}

void TrainingRun::take_step(RunStep& outcome, const std::vector<Cases>& cases) {
  outcome.lr = lr_.at(position_.step);
  update_->set_lr(outcome.lr);
  std::optional<RandomState> random;
  if (adapts_damping()) random.emplace(device_);
  outcome.kind = update_->kind();
  if (pipelined_) outcome.kind = pipelined_->begin(position_.step, outcome.kind);
  Session::Step scope = session_->step(outcome.kind);
  StepMoments moments{.began = Clock::now()};
  const at::Tensor loss = learn(cases, outcome);
  moments.passed = Clock::now();
  average(loss, outcome);
  moments.averaged = Clock::now();
  if (!loss_scaler()) require_finite(outcome.loss, position_.step + 1);
  outcome.skipped = !update_->apply();
  if (!outcome.skipped) require_finite(outcome.loss, position_.step + 1);  // under fp16 an overflow is no error
  update_->zero_grad();
  moments.updated = Clock::now();
  scope.finish();
  if (random && !outcome.skipped) adapt_damping(cases, *random, loss);
  if (const swap::Schedule* schedule = session_->schedule(outcome.kind))
    outcome.bound_seconds = schedule->bound_seconds;
  ++position_.step;
  if (pipelined_) pipelined_->end(moments, position_.step);
  position_.cases_drawn += cases_per_step(context_);
}

bool TrainingRun::adapts_damping() const {
  const int64_t every = context_.options.kfac.damping_adaptation;
  return kfac() && every > 0 && (position_.step + 1) % every == 0;
}

void TrainingRun::adapt_damping(const std::vector<Cases>& cases, const RandomState& random, const at::Tensor& loss) {
  const double before = of_copy(loss.defined() ? std::optional(loss.item<double>()) : std::nullopt);
  update_->kfac()->adapt_damping(before, loss_again(cases, random));
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
  return pipelined_ ? pipelined_->on_all_ranks(value) : value.value_or(0);
}

StepRequests TrainingRun::take_requests() {
  if (!requests_) return {};
  return {.stop = requests_->stop, .checkpoint = requests_->checkpoint.exchange(false)};
}

void TrainingRun::average(const at::Tensor& loss, RunStep& outcome) {
  outcome.requested = take_requests();
  if (context_.comm) {
    const PassesOutcome joined = gradients_->join(loss, {.requested = outcome.requested, .left = outcome.left});
    outcome.loss = joined.loss;
    outcome.requested = joined.requested;
    outcome.left = joined.left;
  } else if (!outcome.left) {
    outcome.loss = loss.item<double>();
  }
  if (outcome.left) throw Interrupted("[train] the step was left");
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
  update_->add_state(all);
  return all;
}

std::string TrainingRun::weights_sha256() {
  if (!pipelined_) return runtime::weights_sha256(model_->module());
  const ddl::Busy busy(context_.comm->communicator.get());
  return runtime::weights_sha256(whole_state(weights(), context_), context_.comm);
}

void TrainingRun::save() {
  update_->finish_refreshes();
  const TrainOptions& options = context_.options;
  write_checkpoint(options.checkpoint.folder, options, position_, whole_state(state(), context_), context_.comm);
}

void TrainingRun::resume() {
  const TrainOptions& options = context_.options;
  if (kfac() && context_.keeps_refresh) {
    // K-FAC's counters tell what else it has.
    const std::vector<StateTensor> counters = update_->counters();
    read_checkpoint(options.checkpoint.folder, options, position_, counters, context_.comm);
    update_->resume_counters(counters);
  }
  std::vector<StateTensor> all = state();
  if (!context_.keeps_refresh) name_next_inverses(options.checkpoint.folder, all);
  read_checkpoint(options.checkpoint.folder, options, position_, all, context_.comm);
  update_->resume(all);
  sampler_.skip(position_.cases_drawn);
}

int64_t TrainingRun::parameters() const {
  return count_parameters(model_->module(), context_);
}

}  // namespace spillway::runtime
