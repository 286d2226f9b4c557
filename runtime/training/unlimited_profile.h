/// What a run needs without a budget, and what a budget then means.
#pragma once
#include <cstdint>

#include "runtime/results/train_result.h"
#include "runtime/training/run_context.h"

namespace spillway {

/// The strategy of the observed step where the budget is to choose one.
inline constexpr kfac::Strategy kObservedStrategy = kfac::Strategy::hybrid;

/// Runs one step and one validation without a budget on a copy of everything, made from the same seed, to learn what
/// they need. Collective.
Observation observe(const RunContext& context);

/// The request with a percentage turned into bytes.
BudgetRequest in_bytes(const BudgetRequest& request, const Observation& observed);

/// The budget in bytes that `request` means beside `observed`. Throws InfeasibleBudget, naming the operator, its bytes
/// and the smallest feasible budget, when it is below the floor and may not be exceeded.
int64_t resolve_budget(const BudgetRequest& request, const Observation& observed, bool may_be_exceeded = false);

}  // namespace spillway
