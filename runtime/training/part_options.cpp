#include "runtime/training/part_options.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ddl/comm/communicator.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/whole_state.h"

namespace spillway::runtime {
namespace {

/// Returns the bucket size of a run with a budget. It is no choice by the links' rates, because these are measured, and
/// the floor would depend on them.
int64_t bucket_bytes_of(int64_t buffer_bytes) {
  return std::clamp(buffer_bytes / 4, int64_t{1} << 20, int64_t{4} << 20);
}

}  // namespace

SessionOptions session_options(const RunContext& context, int64_t budget_bytes, Interrupter& interrupter,
                               StepRecorder* recorder) {
  const TrainOptions& train = context.options;
  SessionOptions options{.device = train.memory.device,
                         .engine = train.memory.engine,
                         .budget_bytes = budget_bytes,
                         .split_bytes = train.memory.split_bytes,
                         .kernels = context.kernels};
  if (budget_bytes != kUnlimitedBytes) {  // else nothing leaves the device
    if (train.memory.host_budget.kind == BudgetRequest::Kind::bytes)
      options.host_budget_bytes = train.memory.host_budget.bytes;
    if (context.comm) options.ranks_of_host = context.comm->communicator->local_size();
    options.disk_directory = train.memory.disk;
  }
  options.observer = std::shared_ptr<OperatorObserver>(&interrupter, [](OperatorObserver*) {});
  if (!recorder) return options;
  if (train.memory.device == "cpu")  // a GPU's copies run on its own streams
    options.decorate_timeline = [recorder](std::unique_ptr<Timeline>, std::string_view lane) {
      return recorder->record_lane(lane);
    };
  options.decorate_disk = [recorder](std::unique_ptr<swap::DiskIo> disk) {
    return recorder->record_disk(std::move(disk));
  };
  return options;
}

ddl::GradientOptions gradient_options(const TrainOptions& options) {
  const GradientExchangeOptions& gradients = options.gradients;
  ddl::GradientOptions result{.bucket_bytes = gradients.bucket_bytes};
  if (gradients.buffer_bytes > 0) result.max_in_flight_bytes = gradients.buffer_bytes;
  if (options.memory.budget.kind == BudgetRequest::Kind::none) return result;
  if (gradients.buffer_bytes == 0) result.max_in_flight_bytes = kGradientBufferWithABudget;
  if (gradients.bucket_bytes == 0) result.bucket_bytes = bucket_bytes_of(result.max_in_flight_bytes);
  return result;
}

kfac::ModelStages stages_of(const RunContext& context) {
  if (!context.pipeline) return {};
  const auto all_rows = [pipeline = context.pipeline](const at::Tensor& rows, const std::vector<int64_t>& numbers) {
    return gather_rows(*pipeline->of_copy, rows, numbers);
  };
  return {.layers = context.preconditioned_layers,
          .curvature = context.options.kfac.preconditioner.layer_curvature,
          .all_rows = all_rows};
}

kfac::KfacOptions kfac_options(const TrainOptions& options, const LrSchedule& lr, double grad_worker_frac) {
  const auto decayed = [&](const kfac::StepSchedule& value, const std::vector<Decay>& decays) {
    if (decays.empty()) return value;
    std::vector<kfac::StepDecay> steps;
    for (const Decay& decay : decays) steps.push_back({lr.first_step_of(decay.epoch), decay.factor});
    return kfac::decayed(value, std::move(steps));
  };
  kfac::KfacOptions kfac = options.kfac.preconditioner;
  kfac.grad_worker_frac = grad_worker_frac;
  kfac.seed = options.seed;
  kfac.lr = kfac::StepSchedule([lr](int64_t step) { return lr.at(step); });
  kfac.relative_damping = decayed(kfac.relative_damping_in_use(), options.kfac.damping_decay);
  if (kfac.damping) kfac.damping = decayed(*kfac.damping, options.kfac.damping_decay);
  if (!options.kfac.interval_decay.empty()) {
    const auto factor = kfac.factor_interval_in_use(), inverse = kfac.inverse_interval_in_use();
    kfac.factor_interval = decayed(factor, options.kfac.interval_decay);
    kfac.inverse_interval = decayed(inverse, options.kfac.interval_decay);
  }
  // An interval below one step is refused now, not in the middle.
  for (const Decay& decay : options.kfac.interval_decay) kfac.at(lr.first_step_of(decay.epoch));
  return kfac;
}

}  // namespace spillway::runtime
