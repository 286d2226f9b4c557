// The choice of a run's curvature before it begins.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kfac/factors/capture.h"
#include "kfac/factors/layers.h"
#include "kfac/plan/curvature_plan.h"
#include "runtime/models/task.h"
#include "runtime/passes/autocast.h"
#include "runtime/passes/random_state.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {
namespace {

// Batch norm cannot normalize a single value a channel, so one case is not enough for every model.
constexpr int64_t kCountedCases = 2;

// Returns the rows of each layer in one step of a rank.
std::vector<int64_t> rows_of_step(const RunContext& context, Task& task, const std::vector<kfac::Layer>& layers) {
  const TrainOptions& options = context.options;
  const c10::Device device = options_device(options);
  task.module().to(device);
  std::vector<Batch> cases;
  const int64_t counted = std::min<int64_t>(kCountedCases, options.data.batch);
  for (int64_t i = 0; i < counted; ++i) cases.push_back(context.data->at(context.split.train.front()));
  Batch batch = collate(cases);
  batch.input = batch.input.to(device);
  batch.target = batch.target.to(device);
  kfac::WeightIndex weights;
  for (size_t i = 0; i < layers.size(); ++i) weights[layers[i].weight.unsafeGetTensorImpl()] = i;
  at::Tensor loss;
  {
    Autocast autocast(options.precision.amp, device.type());
    loss = task.loss(batch);
  }
  auto rows = kfac::count_positions(loss, weights, layers.size());
  for (auto& count : rows) count = count * options.data.batch / counted * options.optimizer.accumulate;
  return rows;
}

kfac::CurvaturePlan planned(const RunContext& context) {
  const KfacTrainingOptions& kfac = context.options.kfac;
  const RandomState random(options_device(context.options));  // weights and dropout draw numbers
  const auto task = make_task(context.options.model.name, task_options(context.options, *context.data));
  const auto layers = kfac::find_layers(task->module(), kfac.preconditioner).layers;
  auto rows = rows_of_step(context, *task, layers);
  random.restore();
  // Ranks may have cases of other sizes; the plan is one.
  for (auto& count : rows) count = max_over_ranks(context.comm, count);
  return kfac::plan_curvature({.layers = kfac::shapes_of(layers),
                               .positions = std::move(rows),
                               .world = context.world(),
                               .time_share = *kfac.time_share},
                              kfac.preconditioner);
}

}  // namespace

void choose_curvature(RunContext& context) {
  KfacTrainingOptions& kfac = context.options.kfac;
  if (!kfac.enabled) return;
  auto& curvature = kfac.preconditioner.layer_curvature;
  if (context.options.checkpoint.resume) {
    const auto saved = checkpoint_curvature(context.options.checkpoint.folder);
    if (saved.empty() && (kfac.time_share || !curvature.empty()))
      throw BadRequest(str("the run of checkpoint '", context.options.checkpoint.folder,
                           "' had no plan of curvature, and this run is to have one"));
    if (!curvature.empty() && curvature != saved)
      throw BadRequest(str("the run of checkpoint '", context.options.checkpoint.folder,
                           "' had another plan of curvature than this run is to have"));
    curvature = saved;
  } else if (kfac.time_share) {
    auto plan = planned(context);
    curvature = std::move(plan.layers);
    context.counted_kfac_share = plan.time_share;
  }
}

}  // namespace spillway::runtime
