#include "runtime/dry_runs/make_plan.h"

#include <utility>

#include "core/bytes.h"
#include "core/clock.h"
#include "runtime/dry_runs/changes.h"
#include "runtime/dry_runs/make_planner.h"

namespace spillway::runtime {
namespace {

/// The largest batch that is tried.
constexpr int64_t kMaxBatch = 1024;

/// The largest batches of a run under budgets. A batch's floor is found once.
class LargestBatch {
 public:
  LargestBatch(TrainOptions options, const PlanChoice& choice, PlannedCluster& cluster)
      : options_(std::move(options)), choice_(choice), cluster_(cluster) {}

  /// Returns the largest batch whose floor is within the budget; 0 when not even one case fits.
  int64_t within(int64_t budget_bytes) {
    int64_t fits = 0, over = kMaxBatch + 1;
    for (int64_t batch = 1; batch <= kMaxBatch && over > kMaxBatch; batch *= 2)
      (floor_of(batch) <= budget_bytes ? fits : over) = batch;
    while (over - fits > 1) {
      const int64_t middle = (fits + over) / 2;
      (floor_of(middle) <= budget_bytes ? fits : over) = middle;
    }
    return fits;
  }

 private:
  int64_t floor_of(int64_t batch) {
    if (const auto known = floors_.find(batch); known != floors_.end()) return known->second;
    TrainOptions options = options_;
    options.data.batch = batch;
    return floors_[batch] = cluster_.floor_bytes(options, choice_);
  }

  const TrainOptions options_;
  const PlanChoice choice_;
  PlannedCluster& cluster_;
  std::map<int64_t, int64_t> floors_;
};

FrontierRow plan_row(int64_t size, const TrainOptions& options, const PlanRequest& request, RunPlanner& planner,
                     PlannedCluster& cluster) {
  FrontierRow row{.size = size, .unlimited = planner.plan(kUnlimitedBytes)};
  LargestBatch batches(options, row.unlimited.best().choice, cluster);
  for (const BudgetRequest& budget : request.budgets) {
    FrontierPoint point{.budget_percent = budget.percent};
    point.plan = planner.plan(budget_bytes(budget, row.unlimited.best().unlimited_bytes, cluster));
    if (request.largest_batch) point.largest_batch = batches.within(point.plan.budget_bytes);
    row.points.push_back(std::move(point));
  }
  return row;
}

/// Plans with the request's own options.
PlanReport plan_as_asked(const PlanRequest& request, PlannedCluster& cluster) {
  const TrainOptions& options = request.options;
  PlanReport report{.model = options.model.name,
                    .size = request.size,
                    .batch = options.data.batch,
                    .world = cluster.world(),
                    .levels = cluster.levels().shape(),
                    .profile = cluster.profile().name,
                    .origin = cluster.profile().origin};
  RunPlanner planner = make_planner(options, cluster);
  report.unlimited = planner.plan(kUnlimitedBytes);
  const int64_t budget = budget_bytes(options.memory.budget, report.unlimited.best().unlimited_bytes, cluster);
  report.plan = planner.plan(budget);
  if (budget != kUnlimitedBytes) {
    auto [smaller, larger] = planner.neighbors(budget);
    report.smaller = std::move(smaller);
    report.larger = std::move(larger);
  }
  if (request.propose || !report.plan.is_feasible()) report.proposals = propose(options, budget, cluster);
  for (const auto& [size, of_size] : request.sizes) {
    RunPlanner other = make_planner(of_size, cluster);
    report.frontier.push_back(plan_row(size, of_size, request, size == request.size ? planner : other, cluster));
  }
  return report;
}

/// Returns the request with changes, under the budget in bytes that they were taken for.
PlanRequest with_changes(PlanRequest request, const TakenChanges& changed, int64_t world) {
  std::vector<std::string> names;
  for (const Proposal& taken : changed.taken) names.push_back(taken.name);
  request.options = changed.options;
  for (auto& [size, options] : request.sizes) options = make_changes(options, names, world).options;
  return request;
}

}  // namespace

PlanReport make_plan(const PlanRequest& request, PlannedCluster& cluster) {
  const auto start = Clock::now();
  TakenChanges changed{.options = request.options};
  if (!request.allowed.empty()) changed = take_changes(request.options, request.allowed, cluster);
  PlanReport report = plan_as_asked(with_changes(request, changed, cluster.world()), cluster);
  report.taken = std::move(changed.taken);
  report.planning_seconds = seconds_since(start);
  return report;
}

}  // namespace spillway::runtime
