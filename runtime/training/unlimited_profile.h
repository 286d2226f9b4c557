/// The needs of a run without a budget, and the bytes that a requested budget then means.
#pragma once
#include <cstdint>

#include "runtime/interruption/train_requests.h"
#include "runtime/results/train_result.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// The strategy of the observed step where the budget is to choose one.
inline constexpr kfac::Strategy kObservedStrategy = kfac::Strategy::hybrid;

/// Runs one step and one validation without a budget on a copy of everything, made from the same seed, to learn their
/// needs. On a GPU it runs two steps, and shows the second. With late refreshes of K-FAC it runs a cycle of them,
/// because steps of a cycle differ. Throws Interrupted on every rank when `requests`, if any, ask for a stop meanwhile.
/// Collective.
UnlimitedProfile profile_unlimited_step(const RunContext& context, TrainRequests* requests = nullptr);

/// Returns the request with a percentage turned into bytes: that share of `whole_bytes` but for the `library_bytes`
/// among them. What libraries hold comes on top, because it cannot leave.
BudgetRequest in_bytes(const BudgetRequest& request, int64_t whole_bytes, int64_t library_bytes = 0);
/// Returns the device's budget with a percentage turned into bytes: that share of what tensors hold at the peak, and
/// what libraries hold.
BudgetRequest in_bytes(const BudgetRequest& request, const UnlimitedProfile& observed);

/// Returns the budget in bytes that `request` means beside `observed`. Throws InfeasibleBudget when the budget is below
/// the floor and may not be exceeded. The error names the operator, its bytes and the smallest feasible budget.
int64_t resolve_budget(const BudgetRequest& request, const UnlimitedProfile& observed, bool may_be_exceeded = false);

/// Returns the budget in bytes of the context's options, as resolve_budget() does. Where it refuses and operators may
/// be split, observes at most three more steps, each with a smaller split size, until one brings the floor below the
/// budget. The error then names that `--split` and its floor. Collective: ranks may have budgets of their own, and
/// where one refuses, the others throw CommError with its words.
int64_t resolve_budget_or_name_split(const RunContext& context, const UnlimitedProfile& observed);

}  // namespace spillway::runtime
