#include "runtime/training/unlimited_profile.h"

#include "core/error.h"
#include "runtime/training/failure.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

UnlimitedProfile profile_unlimited_step(const RunContext& context) {
  RunContext least = context;
  if (context.options.kfac.strategy == kfac::Strategy::automatic) least.options.kfac.strategy = kObservedStrategy;
  const bool choose = context.options.choose_grad_worker_frac;
  TrainingRun run(least, kUnlimitedBytes, choose ? 1.0 / context.world() : context.options.kfac.grad_worker_frac);
  UnlimitedProfile observed;
  heard_by_all(context.comm, [&] {
    StepOutcome step = run.step();
    while (step.skipped) step = run.step();  // the loss scale is still too large: the optimizer has not run yet
    observed.step_seconds = step.seconds;
    run.validate();
  });
  observed.peak_bytes = max_over_ranks(context.comm, run.session().stats().peak_bytes);
  const swap::Need& need = run.session().neediest();
  observed.floor_bytes = max_over_ranks(context.comm, need.bytes());
  observed.floor_operator = need.name;
  observed.floor_operator_bytes = need.leased_bytes + need.own_bytes;
  observed.gradient_bytes = run.gradient_bytes();
  observed.gradient_seconds = run.gradient_seconds();
  return observed;
}

BudgetRequest in_bytes(const BudgetRequest& request, const UnlimitedProfile& observed) {
  if (request.kind != BudgetRequest::Kind::percent) return request;
  return {.kind = BudgetRequest::Kind::bytes,
          .bytes = static_cast<int64_t>(request.percent / 100 * static_cast<double>(observed.peak_bytes))};
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

}  // namespace spillway
