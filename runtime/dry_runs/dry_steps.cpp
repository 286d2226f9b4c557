#include "runtime/dry_runs/dry_steps.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "ddl/comm/communicator.h"
#include "kfac/factors/layers.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/step_work.h"
#include "pipe/replay.h"
#include "runtime/models/task.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/training/training_run.h"

namespace spillway::runtime {
namespace {

/// Steps of each kind without K-FAC: the first one makes the optimizer's state, so it is not like the others.
constexpr int64_t kPlainSteps = 2;
constexpr const char* kPlain = "plain";
constexpr std::string_view kReceive = "spillway::receive_";

std::map<std::string, double> shares_of(const TrainOptions& options) {
  if (!options.kfac.enabled) return {{kPlain, 1.0}};
  return kfac::shares_of_kinds(options.kfac.preconditioner);
}

/// Returns the options of a run in which all kinds of step come soon.
TrainOptions with_all_kinds(TrainOptions options) {
  options.kfac.preconditioner = kfac::with_short_intervals(options.kfac.preconditioner);
  options.kfac.interval_decay.clear();
  options.epochs = 0;
  options.steps = options.kfac.enabled ? kfac::steps_of_all_kinds(options.kfac.preconditioner) : kPlainSteps;
  options.memory.host_budget = {};
  options.memory.disk.clear();
  options.checkpoint = {};
  return options;
}

/// The work and the state of one rank.
struct RankLoad {
  int rank = 0;
  double decomposing = 0, preconditioning = 0;
  int64_t bytes = 0;
};

std::vector<RankLoad> loads_of(const std::vector<kfac::LayerShape>& layers,
                               const std::vector<kfac::Assignment>& assignments, int world) {
  std::vector<RankLoad> loads(world);
  const std::vector<kfac::FactorBytes> bytes = kfac::bytes_per_rank(layers, assignments);
  for (int rank = 0; rank < world; ++rank) loads[rank] = {.rank = rank, .bytes = bytes[rank].held()};
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto factors = layers[l].factors();
    for (size_t f = 0; f < factors.size(); ++f)
      loads[assignments[l].owners[f]].decomposing += kfac::decomposition_flops(layers[l], factors[f]);
    for (int64_t worker : assignments[l].workers) loads[worker].preconditioning += kfac::precondition_flops(layers[l]);
  }
  return loads;
}

/// Keeps the first rank of each load.
std::vector<RankLoad> distinct(const std::vector<RankLoad>& loads) {
  std::set<std::tuple<double, double, int64_t>> seen;
  std::vector<RankLoad> first;
  for (const RankLoad& load : loads)
    if (seen.emplace(load.decomposing, load.preconditioning, load.bytes).second) first.push_back(load);
  return first;
}

}  // namespace

namespace {

/// A rank's dry run.
struct DryRun {
  RankSteps steps;
  std::shared_ptr<const Pipeline> pipeline;     ///< null where the model is whole
  std::vector<pipe::StageSeconds> stages = {};  ///< seconds of the rank's stages
  double message_seconds = 0;
};

DryRun dry_run(const TrainOptions& options, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times) {
  DryRun dry{.steps = {.rank = ddl::rank_of(comm)}, .pipeline = nullptr};
  const RunContext context = make_dry_context(with_all_kinds(options), std::move(comm), std::move(times));
  TrainingRun run(context, kUnlimitedBytes, context.options.kfac.preconditioner.grad_worker_frac);
  for (int64_t step = 0; step < context.options.steps; ++step) run.step();
  run.validate();
  const auto shares = shares_of(options);
  for (const swap::StepTrace* trace : run.session().traces()) {
    const auto share = shares.find(trace->kind);
    dry.steps.kinds.push_back({share == shares.end() ? 0 : share->second, *trace});
  }
  dry.steps.peak_bytes = run.session().stats().peak_bytes;
  const swap::Need& need = run.session().neediest();
  dry.steps.floor_bytes = need.bytes();
  dry.steps.floor_operator = need.name;
  dry.pipeline = context.pipeline;
  if (!dry.pipeline) return dry;
  dry.stages = run.take_stage_seconds();
  dry.message_seconds = message_seconds(*dry.pipeline, context.comm);
  return dry;
}

/// Lets the receives of a step last as long as the rank waits before each item.
void set_waits(const PipelinePlan& plan, int place, const std::vector<pipe::Span>& spans, swap::StepTrace& trace) {
  std::vector<double> waits;  // by message
  double free = 0;
  for (const pipe::Span& span : spans) {
    // A rank waits in the first receive, and finds the other messages there.
    for (int i = 0; i < plan.messages_before(span.item, place); ++i)
      waits.push_back(i == 0 ? std::max(0.0, span.begin - free) : 0);
    free = span.end;
  }
  size_t next = 0;
  for (swap::OperatorRecord& op : trace.operators)
    if (op.name == kReceive && next < waits.size()) op.seconds = waits[next++];
}

}  // namespace

RankSteps dry_steps(const TrainOptions& options, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times) {
  return dry_run(options, std::move(comm), std::move(times)).steps;
}

std::vector<RankSteps> dry_pipeline_steps(const TrainOptions& asked, int world,
                                          const std::function<ddl::Comm(int rank)>& comm_of,
                                          const std::shared_ptr<swap::KernelTimes>& times) {
  TrainOptions options = asked;
  options.pipeline.refresh = RefreshTurns::at_once;
  std::vector<DryRun> runs;
  const int copies = world / static_cast<int>(options.pipeline.ranks);
  for (int place = 0; place < options.pipeline.ranks; ++place)
    runs.push_back(dry_run(options, comm_of(place * copies), times));
  const PipelinePlan& plan = runs.front().pipeline->plan;
  pipe::Costs costs{.stages = std::vector<pipe::StageSeconds>(plan.stages()), .message = runs.front().message_seconds};
  for (size_t place = 0; place < runs.size(); ++place)
    for (const PlacedStage& at : plan.stages_at(static_cast<int>(place)))
      costs.stages[at.stage] = runs[place].stages[at.stage];
  const pipe::Replayed replayed = pipe::replay(plan.program, costs);
  std::vector<RankSteps> all;
  for (size_t place = 0; place < runs.size(); ++place) {
    for (KindOfStep& kind : runs[place].steps.kinds)
      if (kind.share > 0) set_waits(plan, static_cast<int>(place), replayed.spans[place], kind.trace);
    all.push_back(std::move(runs[place].steps));
  }
  return all;
}

std::vector<kfac::LayerShape> preconditioned_layers(const TrainOptions& options) {
  if (!options.kfac.enabled) return {};
  TrainOptions whole = options;
  whole.pipeline = {};
  const RunContext context = make_dry_context(whole);
  const auto task = make_task(context.options.model.name, task_options(context.options, *context.data));
  return kfac::shapes_of(kfac::find_layers(task->module(), context.options.kfac.preconditioner).layers);
}

std::vector<int> ranks_that_differ(const std::vector<kfac::LayerShape>& layers, const kfac::KfacOptions& options,
                                   int world, size_t most) {
  if (layers.empty() || world == 1) return {0};
  std::vector<RankLoad> loads = distinct(loads_of(layers, kfac::assign(layers, world, options), world));
  if (loads.size() > most) {
    const std::vector<RankLoad> all = std::exchange(loads, {loads.front()});
    const auto largest = [&](auto of) {
      loads.push_back(*std::max_element(all.begin(), all.end(),
                                        [&](const RankLoad& a, const RankLoad& b) { return of(a) < of(b); }));
    };
    largest([](const RankLoad& load) { return load.decomposing; });
    largest([](const RankLoad& load) { return load.preconditioning; });
    largest([](const RankLoad& load) { return static_cast<double>(load.bytes); });
  }
  std::set<int> ranks;
  for (const RankLoad& load : loads) ranks.insert(load.rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace spillway::runtime
