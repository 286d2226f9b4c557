#include "runtime/training_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "ddl/collectives.h"
#include "kfac/preconditioner.h"
#include "swap/schedule.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Optimizer> make_optimizer(const TrainOptions& options, torch::nn::Module& module) {
  if (options.optimizer == "sgd")
    return std::make_unique<Sgd>(
        module.parameters(),
        SgdOptions{.lr = options.lr, .momentum = options.momentum, .weight_decay = options.weight_decay});
  return std::make_unique<Adam>(module.parameters(),
                                AdamOptions{.lr = options.lr, .weight_decay = options.weight_decay});
}

SessionOptions session_options(const TrainOptions& train, int64_t budget_bytes, StepRecorder* recorder) {
  SessionOptions options{.budget_bytes = budget_bytes};
  if (budget_bytes != kUnlimitedBytes) {  // else nothing leaves the device
    if (train.host_budget.kind == BudgetRequest::Kind::bytes) options.host_budget_bytes = train.host_budget.bytes;
    options.disk_directory = train.disk;
  }
  if (!recorder) return options;
  options.observer = std::shared_ptr<OperatorObserver>(recorder, [](OperatorObserver*) {});
  options.decorate_timeline = [recorder](std::unique_ptr<Timeline>, std::string_view lane) {
    return recorder->record_lane(lane);
  };
  options.decorate_disk = [recorder](std::unique_ptr<DiskIo> disk) { return recorder->record_disk(std::move(disk)); };
  return options;
}

}  // namespace

TaskOptions task_options(const TrainOptions& options, const Dataset& data) {
  TaskOptions task;
  task.unet3d.filters = options.filters;
  if (options.model == "mlp") {
    const Batch sample = data.at(0);
    task.mlp.input = sample.input.size(1);
    task.mlp.classes = 10;
  }
  return task;
}

int64_t max_over_ranks(const ddl::Comm& comm, int64_t value) {
  if (!comm) return value;
  std::vector<int64_t> all(static_cast<size_t>(comm->communicator->size()));
  ddl::allgather(*comm->communicator, std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

TrainingRun::TrainingRun(const RunContext& context, int64_t budget_bytes, double grad_worker_frac,
                         StepRecorder* recorder)
    : context_(context),
      session_(std::make_unique<Session>(session_options(context.options, budget_bytes, recorder))),
      sampler_(context.split.train, context.options.batch, context.rank(), context.world(), context.options.seed) {
  const TrainOptions& options = context.options;
  at::manual_seed(options.seed);
  {
    CategoryScope category(Category::weights);
    task_ = make_task(options.model, task_options(options, *context.data));
  }
  optimizer_ = make_optimizer(options, task_->module());
  if (options.use_kfac) {
    kfac::KfacOptions kfac = options.kfac;
    kfac.grad_worker_frac = grad_worker_frac;
    kfac_.emplace(task_->module(), kfac, context.comm);
  }
  // Weights are the same on every rank; dropout is each rank's own.
  at::manual_seed(options.seed * 1'000'003 + 1 + static_cast<uint64_t>(context.rank()));
}

StepOutcome TrainingRun::step(bool want_stop) {
  StepOutcome outcome;
  const auto start = Clock::now();
  Batch cases = gather(*context_.data, sampler_.next());
  outcome.kind = kfac_ ? std::string(kfac_->kind()) : "plain";
  Session::Step scope = session_->step(outcome.kind);
  Batch batch{cases.input.clone(), cases.target.clone()};  // from host memory to the device
  at::Tensor loss = task_->loss(batch);
  if (kfac_) kfac_->watch(loss, batch.input.size(0));
  loss.backward();
  batch = {};
  auto [mean_loss, stop] = average(loss, want_stop);
  if (kfac_) kfac_->step(optimizer_->lr());
  optimizer_->step();
  optimizer_->zero_grad();
  scope.finish();
  if (const Schedule* schedule = session_->schedule(outcome.kind)) outcome.bound_seconds = schedule->bound_seconds;
  outcome.loss = mean_loss;
  outcome.stop = stop > 0;
  outcome.seconds = seconds_since(start);
  return outcome;
}

std::pair<double, double> TrainingRun::average(const at::Tensor& loss, bool want_stop) {
  if (!context_.comm) return {loss.item<double>(), want_stop ? 1 : 0};
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : optimizer_->parameters())
    if (parameter.grad().defined()) tensors.push_back(parameter.grad());
  gradient_bytes_ = 0;
  for (const at::Tensor& gradient : tensors) gradient_bytes_ += static_cast<int64_t>(gradient.nbytes());
  at::Tensor status = at::stack({loss.detach().to(at::kFloat), at::scalar_tensor(want_stop ? 1.f : 0.f)});
  tensors.push_back(status);
  const auto start = Clock::now();
  ddl::allreduce_(tensors, context_.comm, ddl::Reduction::average);
  gradient_seconds_ += seconds_since(start);
  return {status[0].item<double>(), status[1].item<double>()};
}

double TrainingRun::validate() {
  at::Tensor sum = at::zeros({2});
  const std::vector<int64_t>& cases = context_.split.validation;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (static_cast<int>(i) % context_.world() != context_.rank()) continue;
    Batch on_host = context_.data->at(cases[i]);
    Session::Step scope = session_->step("validate");
    Batch batch{on_host.input.clone(), on_host.target.clone()};
    const double value = task_->metric(batch);
    batch = {};
    scope.finish();
    sum.add_(at::tensor({static_cast<float>(value), 1.f}));
  }
  if (context_.comm) ddl::allreduce_({sum}, context_.comm, ddl::Reduction::sum);
  return sum[0].item<double>() / std::max(1.0, sum[1].item<double>());
}

int64_t TrainingRun::parameters() const {
  int64_t count = 0;
  for (const at::Tensor& parameter : optimizer_->parameters()) count += parameter.numel();
  return count;
}

}  // namespace spillway
