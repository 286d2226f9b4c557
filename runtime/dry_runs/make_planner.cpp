#include "runtime/dry_runs/make_planner.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "runtime/dry_runs/dry_steps.h"
#include "runtime/models/task.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/run_context.h"
#include "runtime/training/unlimited_profile.h"

namespace spillway::runtime {
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

}  // namespace spillway::runtime
