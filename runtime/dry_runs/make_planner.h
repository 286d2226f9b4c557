/// The planner of a run on planned machines.
#pragma once
#include <cstdint>

#include "runtime/dry_runs/planned_cluster.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/run_plan.h"

namespace spillway::runtime {

/// Returns a planner of the run on the cluster. It weighs plan_choices() of K-FAC's options on several ranks, else one
/// choice alone. `cluster` must outlive it.
RunPlanner make_planner(const TrainOptions& options, PlannedCluster& cluster);

/// Returns the options' budget in bytes; kUnlimitedBytes without one. A percentage is of what tensors hold of a peak of
/// `unlimited_bytes`, and what the cluster's libraries hold comes on top, as in a run.
int64_t budget_bytes(const BudgetRequest& budget, int64_t unlimited_bytes, const PlannedCluster& cluster);

}  // namespace spillway::runtime
