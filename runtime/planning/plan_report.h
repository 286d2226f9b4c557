/// A plan of a run, and of its neighbors in size and budget, for people.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/planning/run_plan.h"

namespace spillway::runtime {

/// A size of the data under one budget.
struct FrontierPoint {
  double budget_percent = 0;  ///< share of the peak without a budget; 0: the budget was asked for in bytes
  RunPlan plan = {};
  int64_t largest_batch = 0;  ///< cases per rank that fit; 0: not looked for, or none fits
};

/// A size of the data under several budgets.
struct FrontierRow {
  int64_t size = 0;        ///< edge of a volume or an image, words of a sequence, or features
  RunPlan unlimited = {};  ///< without a budget
  std::vector<FrontierPoint> points = {};
};

/// A change to the run that changes bits of its result, and the plan with it.
struct Proposal {
  std::string name;   ///< the name for `--allow`
  std::string flags;  ///< flags that make the same change
  RunPlan plan;
};

/// The request of a plan and its outcome.
struct PlanReport {
  std::string model = {};
  int64_t size = 0;  ///< FrontierRow::size of the run
  int64_t batch = 1;
  int world = 1;
  std::string levels = {};   ///< shape of the world: `4x2`
  std::string profile = {};  ///< name of the device's profile
  std::string origin = {};   ///< where its numbers come from
  RunPlan unlimited = {};
  RunPlan plan = {};  ///< under the budget that was asked for; the same as `unlimited` without one
  std::optional<RunPlan> smaller = {}, larger = {};  ///< under three quarters, and four thirds, of that budget
  std::vector<Proposal> taken = {};                  ///< allowed changes that the plan takes
  std::vector<Proposal> proposals = {};              ///< changes that were weighed alone, and are not taken
  std::vector<FrontierRow> frontier = {};
  double planning_seconds = 0;
};

/// Returns what the plan under another budget does otherwise: `with 108 MiB: hybrid f=0.5, lpt-time, 3 % slower`.
std::string under_another_budget(const RunPlan& other, const RunPlan& plan);

/// Tells in a few lines what the plan chose and why, what another budget would change, which allowed changes it takes,
/// and which others would make it feasible or faster.
std::string explain(const PlanReport& report);

}  // namespace spillway::runtime
