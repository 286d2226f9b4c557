/// Plans of training runs: how a run should be distributed under a budget, and what it will take.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/dry_runs/planned_cluster.h"
#include "runtime/options/train_options.h"
#include "runtime/planning/plan_report.h"

namespace spillway::runtime {

/// A plan that is asked for.
struct PlanRequest {
  TrainOptions options;
  int64_t size = 0;                            ///< FrontierRow::size of the options
  std::vector<BudgetRequest> budgets = {};     ///< budgets of the frontier
  std::map<int64_t, TrainOptions> sizes = {};  ///< options of each size of the frontier
  bool largest_batch = false;                  ///< look for the largest batch of each of its points
  std::vector<std::string> allowed = {};       ///< changes of bits that the plan may take (runtime/dry_runs/changes.h)
  bool propose = false;                        ///< weigh the others too; done in any case where the run does not fit
};

/// Plans without running anything. Throws BadRequest where the options cannot be run dry.
PlanReport make_plan(const PlanRequest& request, PlannedCluster& cluster);

}  // namespace spillway::runtime
