/// The choice of grad_worker_frac, and of the strategy for `auto`, that a budget can run.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/interruption/train_requests.h"
#include "runtime/planning/grad_worker_choice.h"
#include "runtime/results/train_result.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Returns the options' own strategy and fraction, or the choice of the context's planner where they leave it to the
/// budget; without a planner or a budget that of choose_grad_worker_frac(). A strategy other than the observed one
/// moves its bytes by other operators, which may need more at once. So under a budget a step of that strategy is
/// observed too, and where it does not fit, kObservedStrategy stays. `observed` is missing where nothing is left to
/// choose. Collective. Throws OutOfBudget, ddl::CommError; Interrupted as profile_unlimited_step() does.
GradWorkerChoice choose_feasible_workers(const RunContext& context, const std::optional<UnlimitedProfile>& observed,
                                         int64_t budget_bytes, TrainRequests* requests = nullptr);

}  // namespace spillway::runtime
