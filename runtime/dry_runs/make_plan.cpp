#include "runtime/dry_runs/make_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/bytes.h"
#include "core/clock.h"
#include "runtime/dry_runs/changes.h"
#include "runtime/dry_runs/dry_steps.h"
#include "runtime/models/task.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/run_context.h"
#include "runtime/training/unlimited_profile.h"

namespace spillway::runtime {
namespace {

/// The largest batch that is tried.
constexpr int64_t kLargestBatch = 1024;

/// The largest batches of a run under budgets. A batch's floor is found once.
class LargestBatch {
 public:
  LargestBatch(TrainOptions options, const PlanChoice& choice, PlannedCluster& cluster)
      : options_(std::move(options)), choice_(choice), cluster_(cluster) {}

  /// Returns the largest batch whose floor is within the budget; 0 when not even one case fits.
  int64_t within(int64_t budget_bytes) {
    int64_t fits = 0, over = kLargestBatch + 1;
    for (int64_t batch = 1; batch <= kLargestBatch && over > kLargestBatch; batch *= 2)
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

namespace {

/// Returns the pipelines that a plan weighs: those of the schedules that take the model and its micro-batches.
std::vector<PipelineChoice> pipeline_choices(const TrainOptions& options) {
  const PipelineOptions& asked = options.pipeline;
  if (asked.schedule != PipelineSchedule::automatic) return {{asked.schedule, asked.recompute}};
  TrainOptions whole = options;
  whole.pipeline = {};
  whole.kfac.preconditioner = {};  // it may go with late refreshes alone, and no part depends on it
  const RunContext context = make_dry_context(whole);
  const int64_t parts =
      std::ssize(make_task(context.options.model.name, task_options(context.options, *context.data))->parts());
  std::vector<PipelineChoice> all;
  for (bool recompute : {false, true})
    for (PipelineSchedule schedule : schedules_of_same_bits()) {
      const bool is_chunked = schedule == PipelineSchedule::interleaved;
      const bool takes_chunks =
          options.optimizer.accumulate % asked.ranks == 0 && asked.chunks * asked.ranks <= parts && asked.cut.empty();
      if ((recompute || !asked.recompute) && (!is_chunked || takes_chunks)) all.push_back({schedule, recompute});
    }
  return all;
}

/// Returns the buffers of gradients that a plan weighs: where none is asked for, the one of a run with a budget, and
/// others that take less memory or let more gradients travel at once. Else none.
std::vector<int64_t> gradient_buffers(const TrainOptions& options, int64_t sharing) {
  const bool is_open = options.gradients.overlap && options.gradients.buffer_bytes == 0 && sharing > 1 &&
                       options.memory.budget.kind != BudgetRequest::Kind::none;
  if (!is_open) return {};
  return {kGradientBufferWithABudget, kGradientBufferWithABudget / 4, kGradientBufferWithABudget * 4};
}

}  // namespace

RunPlanner make_planner(const TrainOptions& options, PlannedCluster& cluster) {
  const bool is_cut = options.pipeline.ranks > 1;
  const int64_t sharing = cluster.world() / options.pipeline.ranks * options.pipeline.holders();
  // In a world of one all layers are its own.
  const auto layers = std::make_shared<const std::vector<kfac::LayerShape>>(
      cluster.world() > 1 && !is_cut ? preconditioned_layers(options) : std::vector<kfac::LayerShape>());
  const bool choose = options.kfac.enabled && options.kfac.choose_grad_worker_frac && sharing > 1;
  std::vector<PlanChoice> choices = plan_choices(options.kfac.preconditioner, choose, sharing);
  for (PlanChoice& choice : choices) choice.shares_kfac = options.kfac.enabled && sharing > 1;
  if (is_cut) choices = with_pipelines(choices, pipeline_choices(options));
  return RunPlanner(
      std::move(choices), cluster.schedule_inputs(options),
      [options, &cluster, layers](const PlanChoice& choice) { return cluster.steps(options, *layers, choice); },
      gradient_buffers(options, sharing));
}

int64_t budget_bytes(const BudgetRequest& budget, int64_t unlimited_bytes, const PlannedCluster& cluster) {
  if (budget.kind == BudgetRequest::Kind::none) return kUnlimitedBytes;
  return in_bytes(budget, unlimited_bytes, cluster.profile().library_bytes).bytes;
}

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
