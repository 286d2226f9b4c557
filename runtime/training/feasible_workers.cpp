#include "runtime/training/feasible_workers.h"

#include "core/bytes.h"
#include "core/error.h"
#include "kfac/comm/agreed_options.h"
#include "runtime/models/task.h"
#include "runtime/training/unlimited_profile.h"

namespace spillway::runtime {
namespace {

/// Returns the choice by the formula of bytes.
GradWorkerChoice choose_by_formula(const RunContext& context, const std::optional<UnlimitedProfile>& observed,
                                   int64_t budget_bytes) {
  const TrainOptions& options = context.options;
  GradWorkerInputs inputs;
  inputs.options = options.kfac.preconditioner;
  inputs.world = context.holders();
  inputs.budget_bytes = budget_bytes;
  if (inputs.world > 1) {
    auto task = make_task(options.model.name, task_options(options, *context.data));
    const auto own = own_module(context, *task);
    inputs.layers = kfac::shapes_of(kfac::find_layers(*own, own_kfac_options(context, *own)).layers);
  }
  if (observed) {
    inputs.first_step_peak_bytes = observed->peak_bytes;
    if (!options.memory.may_exceed_budget()) inputs.floor_bytes = observed->floor_bytes;
    // Every rank takes the maximum over ranks, in whole microseconds and kilobytes per second, so that all decide
    // alike.
    inputs.step_seconds =
        static_cast<double>(max_over_ranks(context.comm, static_cast<int64_t>(observed->step_seconds * 1e6))) * 1e-6;
    const double rate = observed->gradient_seconds > 0
                            ? static_cast<double>(observed->gradient_bytes) / observed->gradient_seconds / 1e3
                            : 0;
    if (int64_t agreed = max_over_ranks(context.comm, static_cast<int64_t>(rate)))
      inputs.broadcast_bytes_per_second = static_cast<double>(agreed) * 1e3;
  }
  return choose_grad_worker_frac(inputs);
}

/// True where a planner can tell more than the formula. A curvature of layers may have more kinds of step than a plan
/// can take.
bool can_plan(const RunContext& context, int64_t budget_bytes) {
  return context.planner && !context.pipeline && budget_bytes != kUnlimitedBytes && context.world() > 1 &&
         context.options.kfac.preconditioner.layer_curvature.empty();
}

GradWorkerChoice choose_workers(const RunContext& context, const std::optional<UnlimitedProfile>& observed,
                                int64_t budget_bytes) {
  const KfacTrainingOptions& kfac = context.options.kfac;
  if (!kfac.choose_grad_worker_frac)
    return {kfac.preconditioner.strategy, kfac.preconditioner.grad_worker_frac, "as asked for"};
  if (!can_plan(context, budget_bytes)) return choose_by_formula(context, observed, budget_bytes);
  try {
    return context.planner->choose(context.options, budget_bytes);
  } catch (const BadRequest& error) {  // on every rank: these steps cannot run dry
    GradWorkerChoice choice = choose_by_formula(context, observed, budget_bytes);
    choice.reason += str("; not simulated: ", error.what());
    return choice;
  }
}

}  // namespace

GradWorkerChoice choose_feasible_workers(const RunContext& context, const std::optional<UnlimitedProfile>& observed,
                                         int64_t own_budget_bytes, TrainRequests* requests) {
  const int64_t budget_bytes = -max_over_ranks(context.comm, -own_budget_bytes);  // ranks may have their own
  GradWorkerChoice best = choose_workers(context, observed, budget_bytes);
  const TrainOptions& options = context.options;
  if (options.kfac.preconditioner.strategy != kfac::Strategy::automatic || best.strategy == kObservedStrategy ||
      budget_bytes == kUnlimitedBytes || options.memory.may_exceed_budget())
    return best;
  RunContext other = context;
  other.options.kfac.choose_grad_worker_frac = false;
  other.options.kfac.preconditioner.strategy = best.strategy;
  other.options.kfac.preconditioner.grad_worker_frac = best.grad_worker_frac;
  const UnlimitedProfile needs = profile_unlimited_step(other, requests);
  if (needs.floor_bytes <= budget_bytes) return best;
  other.options = options;
  other.options.kfac.preconditioner.strategy = kObservedStrategy;
  GradWorkerChoice stays = choose_workers(other, observed, budget_bytes);
  stays.reason += str("; ", kfac::name(best.strategy), " f=", best.grad_worker_frac, " would need ",
                      format_bytes(needs.floor_bytes), " (", needs.floor_operator, ")");
  return stays;
}

}  // namespace spillway::runtime
