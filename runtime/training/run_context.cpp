#include "runtime/training/run_context.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/host/memory_limit.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "kfac/comm/agreed_options.h"
#include "kfac/factors/layers.h"
#include "pipe/rolling_refresh.h"
#include "runtime/data/blank_dataset.h"
#include "runtime/data/open_dataset.h"
#include "runtime/data/preload.h"
#include "runtime/data/sampler.h"
#include "runtime/data/synthetic.h"
#include "runtime/data/used_cases.h"
#include "runtime/models/model_info.h"
#include "runtime/models/task.h"
#include "runtime/passes/memory_format.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/training/checkpoint.h"
#include "swap/session.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {
namespace {

/// The time that the kernels of a dry run would have taken.
class DryPipelineClock final : public PipelineClock {
 public:
  explicit DryPipelineClock(std::shared_ptr<const swap::CountedTimes> times) : times_(std::move(times)) {}
  void start() override { start_ = times_->sum(); }
  double now() const override { return times_->sum() - start_; }

 private:
  const std::shared_ptr<const swap::CountedTimes> times_;
  double start_ = 0;
};

/// The maximum number of classes in synthetic images. They are few, so that a short training meets each of them often.
constexpr int64_t kMaxImageClasses = 10;

DatasetOptions dataset_options(const TrainOptions& options) {
  DatasetOptions data;
  data.shape = options.data.shape;
  data.seed = options.seed;
  data.cases = options.data.cases;
  const bool images = model_info(options.model.name).input == InputKind::images;
  if (options.model.classes > 0)
    data.classes = images ? std::min(options.model.classes, kMaxImageClasses) : options.model.classes;
  return data;
}

/// Measures once, and before any Session exists. Runs then place layers by the same measurement as the plan, and no
/// budget pays for it.
void measure_placement(RunContext& context) {
  TrainOptions& options = context.options;
  if (!options.kfac.enabled || options.kfac.preconditioner.placement != kfac::Placement::measured) return;
  const auto task = make_task(options.model.name, task_options(options, *context.data));
  const auto own = own_module(context, *task);
  const auto layers = kfac::find_layers(*own, own_kfac_options(context, *own)).layers;
  options.kfac.preconditioner =
      kfac::with_agreed_seconds(options.kfac.preconditioner, layers, kfac::RankExchange(context.same_weights()));
}

/// Returns the layers that K-FAC preconditions; none without K-FAC.
std::vector<kfac::LayerShape> preconditioned_layers(const TrainOptions& options, Task& task) {
  if (!options.kfac.enabled) return {};
  return kfac::shapes_of(kfac::find_layers(task.module(), options.kfac.preconditioner).layers);
}

bool has(const std::vector<std::string>& modules, const kfac::LayerShape& layer) {
  return std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
    return layer.name == module || layer.name.starts_with(module + ".");
  });
}

/// Throws BadRequest where some rank's stages, in all directions together, have no layer for K-FAC.
void require_layers_at_all_places(const PipelinePlan& plan, const std::vector<kfac::LayerShape>& layers, int copies) {
  std::set<int> places;
  for (const kfac::LayerShape& layer : layers) {
    const int stage = plan.stage_of_module(layer.name);
    for (const auto& rank_of : plan.program.graph.rank_of) places.insert(rank_of[stage]);
  }
  for (int place = 0; place < plan.program.graph.ranks(); ++place)
    if (!places.contains(place))
      throw BadRequest(str("[pipeline] rank ", place * copies, " has no layer that K-FAC preconditions: ",
                           describe(plan), "; choose another --cut, or fewer ranks"));
}

/// Cuts the model over ranks where that is asked for.
void cut_model(RunContext& context) {
  const TrainOptions& options = context.options;
  if (options.pipeline.ranks == 1) return;
  const auto task = make_task(options.model.name, task_options(options, *context.data));
  to_memory_format(task->module(), options.model.layout);
  const std::vector<Batch> cases(options.data.batch, context.data->at(0));
  Batch batch = collate(cases);
  batch.input = batch.input.contiguous(memory_format(options.model.layout, batch.input.dim()));
  const std::vector<kfac::LayerShape> layers = preconditioned_layers(options, *task);
  MayStandAlone may_stand_alone;
  if (options.kfac.enabled)
    may_stand_alone = [&layers](const Part& part) {
      return std::any_of(layers.begin(), layers.end(),
                         [&](const kfac::LayerShape& layer) { return has(part.modules, layer); });
    };
  const Now now = context.clock ? Now([clock = context.clock] { return clock->now(); }) : steady_now();
  context.pipeline = make_pipeline(options.pipeline, options.optimizer.accumulate, *task, batch, options.precision.amp,
                                   context.comm, may_stand_alone, now);
  if (options.kfac.enabled) require_layers_at_all_places(context.pipeline->plan, layers, context.copies());
  context.preconditioned_layers = layers;
}

/// Returns K-FAC's interval: that of the checkpoint, where it was chosen then.
int64_t refresh_interval(const TrainOptions& options) {
  if (options.pipeline.choose_interval && options.checkpoint.resume) {
    const SavedCurvature saved = checkpoint_curvature(options.checkpoint.folder);
    if (!saved.may_be_late())
      throw BadRequest(str("inverse_interval is auto; allowed is a number, because the run of checkpoint '",
                           options.checkpoint.folder, "' had chosen none"));
    return saved.layers.front().interval;
  }
  return static_cast<int64_t>(options.kfac.preconditioner.at(0).inverse_interval);
}

/// Sets the steps of refreshes where the model is cut and they are not done at once.
void set_refresh(RunContext& context) {
  const TrainOptions& options = context.options;
  if (options.pipeline.ranks == 1 || !options.kfac.enabled || options.pipeline.refresh == RefreshTurns::at_once) return;
  const int64_t interval = refresh_interval(options), staleness = options.kfac.preconditioner.staleness;
  int64_t delay = staleness > 0 ? staleness : std::min<int64_t>(2, interval - 1);
  if (options.pipeline.choose_interval) delay = std::min(delay, interval - 1);  // as for each interval that is tried
  if (interval == 1) return;                                                    // nothing may wait
  if (delay >= interval)
    throw BadRequest(str("[pipeline] staleness is ", delay, "; allowed with refresh ", name(options.pipeline.refresh),
                         " is less than the inverse_interval, ", interval));
  set_refresh(context, interval, delay);
}

/// Throws BadRequest where the ranks do not share their number of stages.
void require_ranks(const RunContext& context) {
  const int64_t ranks = context.options.pipeline.ranks;
  if (ranks > 1 && context.world() % ranks != 0)
    throw BadRequest(str("[pipeline] the model is to be cut over ", ranks, " ranks, and there ",
                         context.world() == 1 ? "is " : "are ", context.world(), "; allowed: a divisor of the ranks"));
}

/// Throws BadRequest where the ranks' batches together are larger than the training data.
void require_enough_cases(const RunContext& context) {
  const int64_t batch = context.options.data.batch;
  const int64_t together = batch * context.copies();
  if (together > std::ssize(context.split.train))
    throw BadRequest(str("[train] ", context.copies(), context.options.pipeline.ranks > 1 ? " copies" : " ranks",
                         " of batch ", batch, " take ", together, " cases at once, but there are ",
                         context.split.train.size(), " to train on (", context.split.validation.size(),
                         " are held out); use fewer ranks, a smaller batch or more cases"));
}

}  // namespace

c10::Device options_device(const TrainOptions& options) {
  const c10::Device device(options.memory.device);
  return device.is_cuda() && !device.has_index() ? c10::Device(c10::kCUDA, 0) : device;
}

TaskOptions task_options(const TrainOptions& options, const Dataset& data) {
  constexpr int64_t kHeadWidth = 64;
  TaskOptions task;
  task.unet3d.filters = options.model.filters;
  task.bp3d.filters = options.model.filters;
  for (double share : kSeismicShares) task.bp3d_class_weights.push_back(1 / (3 * share));
  task.resnet50 = {.classes = options.model.classes, .filters = options.model.filters};
  task.bert.layers = options.model.layers;
  task.bert.hidden = options.model.hidden;
  task.bert.heads = std::max<int64_t>(1, options.model.hidden / kHeadWidth);
  task.bert.intermediate = 4 * options.model.hidden;
  if (options.model.name == "mlp")
    task.mlp = {.input = data.at(0).input.size(1),
                .hidden = options.model.hidden,
                .layers = options.model.layers,
                .classes = options.model.classes};
  if (options.model.name == "autoencoder")
    task.autoencoder = {
        .input = data.at(0).input.size(1), .hidden = options.model.hidden, .layers = options.model.layers};
  return task;
}

const ddl::Comm& RunContext::same_weights() const {
  return pipeline ? pipeline->of_place : comm;
}

std::shared_ptr<torch::nn::Module> own_module(const RunContext& context, Task& task) {
  // The whole module is the task's.
  if (!context.pipeline) return {std::shared_ptr<void>(), &task.module()};
  return module_at(context.pipeline->plan, context.pipeline->place, task);
}

kfac::KfacOptions own_kfac_options(const RunContext& context, const torch::nn::Module& own) {
  kfac::KfacOptions options = context.options.kfac.preconditioner;
  if (!context.pipeline || options.layer_curvature.empty()) return options;
  const auto modules = own.named_modules("", /*include_self=*/false);
  std::erase_if(options.layer_curvature,
                [&](const kfac::LayerCurvature& layer) { return !modules.contains(layer.layer); });
  return options;
}

int64_t cases_per_step(const RunContext& context) {
  return context.options.data.batch * context.options.optimizer.accumulate * context.copies();
}

int64_t steps_for(const RunContext& context, int64_t cases) {
  return (cases + cases_per_step(context) - 1) / cases_per_step(context);
}

int64_t steps_per_epoch(const RunContext& context) {
  const TrainOptions& options = context.options;
  return Sampler(context.split.train, options.data.batch, 0, context.copies(), options.seed)
      .steps_per_epoch(options.optimizer.accumulate);
}

void set_refresh(RunContext& context, int64_t interval, int64_t delay) {
  const TrainOptions& options = context.options;
  kfac::KfacOptions& kfac = context.options.kfac.preconditioner;
  kfac.layer_curvature.clear();
  kfac.staleness = 0;  // no solver's thread, so bases may be truncated
  const auto task = make_task(options.model.name, task_options(options, *context.data));
  const auto shapes = kfac::shapes_of(kfac::find_layers(task->module(), kfac).layers);
  std::vector<double> costs;
  for (const kfac::LayerShape& shape : shapes) {
    double& cost = costs.emplace_back(0);
    for (const kfac::FactorShape& factor : shape.factors()) cost += kfac::decomposition_flops(shape, factor);
  }
  const auto refreshes = pipe::rolling_refresh(costs, interval, delay);
  const bool rolls = options.pipeline.refresh == RefreshTurns::rolling;
  for (size_t i = 0; i < shapes.size(); ++i)
    kfac.layer_curvature.push_back({.layer = shapes[i].name,
                                    .samples = kfac.factor_samples,
                                    .rank = kfac.rank_in_use(),
                                    .interval = interval,
                                    .slot = rolls ? refreshes[i].taken_step : 0});
  kfac.factor_interval = kfac.inverse_interval = static_cast<double>(interval);
  kfac.curvature_delay = delay;
}

int64_t max_over_ranks(const ddl::Comm& comm, int64_t value) {
  if (!comm) return value;
  std::vector<int64_t> all(comm->communicator->size());
  ddl::allgather(*comm->communicator, std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

int64_t last_step(const RunContext& context) {
  const TrainOptions& options = context.options;
  const RunPosition& start = context.start;
  // Epochs count cases. The cases that are drawn already may have taken more or fewer steps, on another number of
  // ranks.
  const int64_t steps = options.epochs > 0 ? options.epochs * steps_per_epoch(context) -
                                                 steps_for(context, start.cases_drawn) + start.step
                                           : options.steps;
  if (options.checkpoint.resume && start.step >= steps)
    throw BadRequest(str("[train] the checkpoint in '", options.checkpoint.folder, "' is of step ", start.step,
                         ", and the run is to end after ", steps, ": nothing is left; ask for more steps"));
  return steps;
}

RunContext make_dry_context(const TrainOptions& asked, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times) {
  asked.validate();
  RunContext context{.options = with_model_defaults(asked), .data = nullptr, .split = {}, .comm = std::move(comm)};
  const TrainOptions& options = context.options;
  if (options.memory.device != "cpu")
    throw BadRequest(str("[dry run] the device is ", options.memory.device, "; dry runs are of the cpu"));
  require_ranks(context);
  if (options.kfac.enabled && options.kfac.time_share)
    throw BadRequest("[dry run] a share of the time for K-FAC is chosen by a forward pass, so a dry run has none");
  context.data = open_blank_dataset(options.model.name, options.data.source, dataset_options(options));
  context.split = split(context.data->size());
  require_enough_cases(context);
  if (options.pipeline.ranks == 1) {
    context.kernels = swap::make_shape_kernels(std::move(times));
    return context;
  }
  const auto counted = std::make_shared<swap::CountedTimes>(std::move(times));
  context.clock = std::make_shared<DryPipelineClock>(counted);
  context.kernels = swap::make_shape_kernels(counted);
  const Session session({.kernels = context.kernels});
  cut_model(context);
  set_refresh(context);
  return context;
}

RunContext make_context(const TrainOptions& asked, ddl::Comm comm) {
  asked.validate();
  RunContext context{.options = with_model_defaults(asked), .data = nullptr, .split = {}, .comm = std::move(comm)};
  const TrainOptions& options = context.options;
  require_ranks(context);
  // Reading files may take long. The other ranks must not give this rank up meanwhile.
  const ddl::Busy busy(context.comm ? context.comm->communicator.get() : nullptr);
  auto dataset = open_dataset(options.model.name, options.data.source, dataset_options(options));
  context.split = split(dataset->size());
  require_enough_cases(context);
  const int64_t ranks = context.comm ? context.comm->communicator->local_size() : 1;
  if (options.checkpoint.resume) context.start = checkpoint_position(options.checkpoint.folder, options);
  const int64_t batches = (last_step(context) - context.start.step) * options.optimizer.accumulate;
  Sampler sampler(context.split.train, options.data.batch, context.copy(), context.copies(), options.seed);
  sampler.skip(context.start.cases_drawn);
  const auto used = used_cases(std::move(sampler), context.split, batches, context.copy(), context.copies());
  context.data = preload(std::move(dataset), used, host_memory_limit().bytes / 4 / ranks);
  cut_model(context);
  set_refresh(context);
  choose_curvature(context);
  measure_placement(context);
  return context;
}

}  // namespace spillway::runtime
