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

// True where the layers that a run would have renewed for later steps are those of the checkpoint.
bool has_its_next_inverses(const SavedCurvature& saved, const std::vector<kfac::LayerCurvature>& layers, int64_t delay,
                           int64_t steps) {
  return std::all_of(layers.begin(), layers.end(), [&](const kfac::LayerCurvature& layer) {
    bool is_renewed = false;
    for (int64_t step = std::max<int64_t>(1, steps - delay); step < steps; ++step) is_renewed |= layer.is_due(step);
    return is_renewed == saved.with_next_inverse.contains(layer.layer);
  });
}

// Goes on with late refreshes, which are this run's own, whatever those of the checkpoint's run were.
void go_on_with_late_refreshes(RunContext& context, const SavedCurvature& saved) {
  const kfac::KfacOptions& kfac = context.options.kfac.preconditioner;
  if (!saved.layers.empty() && !saved.may_be_late())
    throw BadRequest(str("the run of checkpoint '", context.options.checkpoint.folder,
                         "' had a plan of curvature (--kfac-time or --kfac-plan); allowed in a pipeline with "
                         "refresh at-once, and this run has refresh ",
                         name(context.options.pipeline.refresh)));
  const bool same_delay =
      saved.delay ? *saved.delay == kfac.curvature_delay
                  : has_its_next_inverses(saved, kfac.layer_curvature, kfac.curvature_delay, context.start.step);
  context.keeps_refresh = saved.layers == kfac.layer_curvature && same_delay;
}

// Goes on with the user's plan of the checkpoint, where it has one.
void go_on_with_plan(RunContext& context, SavedCurvature saved) {
  const std::string& folder = context.options.checkpoint.folder;
  auto& curvature = context.options.kfac.preconditioner.layer_curvature;
  context.keeps_refresh = !saved.is_late();
  if (saved.is_late()) saved.layers.clear();
  if (saved.layers.empty() && (context.options.kfac.time_share || !curvature.empty()))
    throw BadRequest(str("the run of checkpoint '", folder, "' had no plan of curvature, and this run is to have one"));
  if (!curvature.empty() && curvature != saved.layers)
    throw BadRequest(
        str("the run of checkpoint '", folder, "' had another plan of curvature than this run is to have"));
  curvature = std::move(saved.layers);
}

}  // namespace

void choose_curvature(RunContext& context) {
  KfacTrainingOptions& kfac = context.options.kfac;
  if (!kfac.enabled) return;
  if (context.options.checkpoint.resume) {
    SavedCurvature saved = checkpoint_curvature(context.options.checkpoint.folder);
    if (kfac.preconditioner.curvature_delay > 0)
      go_on_with_late_refreshes(context, saved);
    else
      go_on_with_plan(context, std::move(saved));
  } else if (kfac.time_share) {
    auto plan = planned(context);
    kfac.preconditioner.layer_curvature = std::move(plan.layers);
    context.counted_kfac_share = plan.time_share;
  }
}

}  // namespace spillway::runtime
