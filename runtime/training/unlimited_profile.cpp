#include "runtime/training/unlimited_profile.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "core/interrupted.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "kfac/plan/update_cycle.h"
#include "runtime/interruption/failure.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/step_trace.h"

namespace spillway::runtime {
namespace {

/// Windows of smaller operators would cost more than their work.
constexpr int64_t kMinSplitTried = 64 << 10;

/// Returns split sizes below `split_bytes` under which a budget may be feasible, the largest first. They are powers of
/// two besides the default. Floors come near the split size, and above it where arguments cannot be used in windows.
std::vector<int64_t> smaller_splits(int64_t split_bytes, int64_t budget_bytes) {
  const auto part = [&](int64_t share) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(budget_bytes / share, 1))));
  };
  std::vector<int64_t> sizes;
  for (int64_t size : {kDefaultSplitBytes, part(2), part(8)})
    if (size >= kMinSplitTried && size < split_bytes && size <= 2 * budget_bytes &&
        (sizes.empty() || size < sizes.back()))
      sizes.push_back(size);
  return sizes;
}

/// Returns the size as `--split` takes it.
std::string split_flag(int64_t bytes) {
  constexpr int64_t kMiB = 1 << 20;
  return bytes % kMiB == 0 ? str("--split ", bytes / kMiB, "MiB") : str("--split ", bytes / 1024, "KiB");
}

/// Returns the part of a refusal that names the split size under which the budget is feasible; empty when none was
/// found. A checkpoint's run keeps its split size. Collective: sizes come from the smallest budget of all ranks, and
/// one is named when it makes every rank's feasible.
std::string describe_feasible_split(RunContext context, int64_t own_budget_bytes) {
  if (context.options.checkpoint.resume) return "";
  const int64_t budget_bytes = -max_over_ranks(context.comm, -own_budget_bytes);
  for (int64_t size : smaller_splits(context.options.memory.split_in_use(), budget_bytes)) {
    context.options.memory.split_bytes = size;
    const UnlimitedProfile observed = profile_unlimited_step(context);
    const bool fits = observed.floor_bytes <= in_bytes(context.options.memory.budget, observed).bytes;
    if (max_over_ranks(context.comm, fits ? 0 : 1) == 0)
      return str("; with ", split_flag(size), " it is ", observed.floor_bytes, " bytes (",
                 format_bytes(observed.floor_bytes), "), because larger operators then run in windows");
  }
  return "";
}

/// Returns the number of steps that meet the needs of all. Late refreshes keep inputs, gradients and inverses for later
/// steps, which differ within a cycle; the first step keeps none.
int64_t steps_to_observe(const RunContext& context, bool loads_libraries) {
  const kfac::KfacOptions& kfac = context.options.kfac.preconditioner;
  if (loads_libraries) return 2;  // their memory counts from the first step's end on
  if (!context.options.kfac.enabled || kfac.curvature_delay == 0) return 1;
  const int64_t all = 1 + kfac::UpdateCycle(kfac.layer_curvature).length() + kfac.curvature_delay;
  return std::min(all, last_step(context) - context.start.step);
}

/// Returns the largest need of an operator where any may meet what cannot leave at any other time of its step. A plan
/// of K-FAC's work in bubbles moves its operators among those of the passes.
int64_t need_at_any_time(const Session& session) {
  int64_t most = 0;
  for (const swap::StepTrace* trace : session.traces()) {
    int64_t own = 0, unpaged = 0;
    for (const swap::OperatorRecord& one : trace->operators) {
      own = std::max(own, one.leased_bytes + one.own_bytes);
      unpaged = std::max(unpaged, one.unpaged_bytes);
    }
    most = std::max(most, own + unpaged);
  }
  return most;
}

}  // namespace

UnlimitedProfile profile_unlimited_step(const RunContext& context, TrainRequests* requests) {
  RunContext least = context;
  if (context.options.kfac.preconditioner.strategy == kfac::Strategy::automatic)
    least.options.kfac.preconditioner.strategy = kObservedStrategy;
  // The shortest of the intervals that will be tried keeps most, because all layers are under way at once.
  const int64_t delay = context.options.kfac.preconditioner.curvature_delay;
  if (context.options.pipeline.choose_interval && !context.options.checkpoint.resume)
    set_refresh(least, delay + 1, delay);
  const bool choose = context.options.kfac.choose_grad_worker_frac;
  TrainingRun run(least, kUnlimitedBytes,
                  choose ? 1.0 / context.holders() : context.options.kfac.preconditioner.grad_worker_frac, nullptr,
                  requests);
  UnlimitedProfile observed;
  Device& device = open_device(context.options.memory.device);
  const bool loads_libraries = !device.torch_device().is_cpu();
  observed.steps = steps_to_observe(least, loads_libraries);
  const bool left = heard_by_all(context.comm, [&] {
    for (int64_t number = 0; number < observed.steps; ++number) {
      if (number > 0 && loads_libraries) run.session().reset_peak();
      RunStep step = run.step();
      while (step.skipped) step = run.step();  // the loss scale is still too large: the optimizer has not run yet
      observed.step_seconds = step.seconds;
      if (step.requested.checkpoint) requests->checkpoint = true;  // for the run that has something to save
      if (step.left || step.requested.stop) return true;
    }
    return run.validate().left;
  });
  if (left) throw Interrupted("[train] interrupted while the budget was chosen: there are no results yet");
  observed.peak_bytes = max_over_ranks(context.comm, run.session().stats().peak_bytes);
  const swap::Need& need = run.session().neediest();
  const int64_t moved_bytes = run.in_bubbles() ? need_at_any_time(run.session()) : 0;
  observed.floor_bytes = max_over_ranks(context.comm, std::max(need.bytes(), moved_bytes));
  observed.library_bytes = max_over_ranks(context.comm, device.library_bytes());
  observed.floor_operator = need.name;
  observed.floor_operator_bytes = need.leased_bytes + need.own_bytes;
  observed.gradient_bytes = run.gradients().bytes();
  observed.gradient_seconds = run.gradients().seconds();
  return observed;
}

BudgetRequest in_bytes(const BudgetRequest& request, int64_t whole_bytes, int64_t library_bytes) {
  if (request.kind != BudgetRequest::Kind::percent) return request;
  const auto tensors = static_cast<double>(whole_bytes - library_bytes);
  return {.kind = BudgetRequest::Kind::bytes,
          .bytes = library_bytes + static_cast<int64_t>(request.percent / 100 * tensors)};
}

BudgetRequest in_bytes(const BudgetRequest& request, const UnlimitedProfile& observed) {
  return in_bytes(request, observed.peak_bytes, observed.library_bytes);
}

int64_t resolve_budget(const BudgetRequest& request, const UnlimitedProfile& observed, bool may_be_exceeded) {
  if (request.kind == BudgetRequest::Kind::none) return kUnlimitedBytes;
  const int64_t budget = in_bytes(request, observed).bytes;
  if (budget < observed.floor_bytes && !may_be_exceeded)
    throw InfeasibleBudget(str("[train] a budget of ", format_bytes(budget), " (", budget, " bytes) cannot run ",
                               observed.floor_operator, ", which needs ", format_bytes(observed.floor_operator_bytes),
                               " at once; the smallest feasible budget is ", observed.floor_bytes, " bytes (",
                               format_bytes(observed.floor_bytes), ")"));
  return budget;
}

int64_t resolve_budget_or_name_split(const RunContext& context, const UnlimitedProfile& observed) {
  const TrainOptions& options = context.options;
  std::string refusal;
  int64_t budget_bytes = kUnlimitedBytes;
  try {
    budget_bytes = resolve_budget(options.memory.budget, observed, options.memory.may_exceed_budget());
  } catch (const InfeasibleBudget& error) {
    refusal = error.what();
  }
  // Ranks may have budgets of their own. All of them search for a split, because that is collective, and then all end.
  if (max_over_ranks(context.comm, refusal.empty() ? 0 : 1) == 0) return budget_bytes;
  const std::string split = describe_feasible_split(context, in_bytes(options.memory.budget, observed).bytes);
  heard_by_all(context.comm, [&] {
    if (!refusal.empty()) throw InfeasibleBudget(refusal + split);
  });
  ddl::barrier(*context.comm->communicator);  // throws what the ranks said whose budgets are infeasible
  throw InfeasibleBudget("[train] another rank's budget is infeasible");
}

}  // namespace spillway::runtime
