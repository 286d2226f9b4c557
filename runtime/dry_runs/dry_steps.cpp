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
#include "pipe/simulate.h"
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

/// Returns the options of a dry run of some steps.
TrainOptions of_dry_run(TrainOptions options, int64_t steps) {
  options.kfac.interval_decay.clear();
  options.epochs = 0;
  options.steps = steps;
  options.memory.host_budget = {};
  options.memory.disk.clear();
  options.checkpoint = {};
  return options;
}

/// Returns the options of a run in which all kinds of step come soon.
TrainOptions with_all_kinds(TrainOptions options) {
  options.kfac.preconditioner = kfac::with_short_intervals(options.kfac.preconditioner);
  return of_dry_run(options,
                    options.kfac.enabled ? kfac::steps_of_all_kinds(options.kfac.preconditioner) : kPlainSteps);
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

/// A rank's dry run.
class DryRank {
 public:
  DryRank(const TrainOptions& options, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times)
      : context_(make_dry_context(options, std::move(comm), std::move(times))),
        run_(context_, kUnlimitedBytes, context_.options.kfac.preconditioner.grad_worker_frac) {}

  /// Takes steps, and returns their kinds.
  std::vector<std::string> take_steps(int64_t steps) {
    std::vector<std::string> kinds;
    for (int64_t step = 0; step < steps; ++step) kinds.push_back(run_.step().kind);
    return kinds;
  }

  /// Returns all kinds of step, with these shares of a long run.
  RankSteps steps(const std::map<std::string, double>& shares) {
    RankSteps steps{.rank = context_.rank()};
    run_.validate();
    for (const swap::StepTrace* trace : run_.session().traces()) {
      const auto share = shares.find(trace->kind);
      steps.kinds.push_back({share == shares.end() ? 0 : share->second, *trace});
    }
    steps.peak_bytes = run_.session().stats().peak_bytes;
    const swap::Need& need = run_.session().neediest();
    steps.floor_bytes = need.bytes();
    steps.floor_operator = need.name;
    return steps;
  }

  TrainingRun& run() { return run_; }
  const Pipeline& pipeline() const { return *context_.pipeline; }
  double message_seconds() const { return runtime::message_seconds(pipeline(), context_.comm); }

 private:
  const RunContext context_;
  TrainingRun run_;
};

/// Lets the receives of a step last as long as its rank waits before each item. The rank is free at `free`.
void set_waits(const PipelinePlan& plan, int place, const std::vector<pipe::FilledItem>& items, double free,
               swap::StepTrace& trace) {
  std::vector<double> waits;  // by message
  for (const pipe::FilledItem& item : items) {
    // A rank waits in the first receive, and finds the other messages there.
    const int messages = item.extra < 0 ? plan.messages_before(item.item, place) : 0;
    for (int i = 0; i < messages; ++i) waits.push_back(i == 0 ? std::max(0.0, item.begin - free) : 0);
    free = item.end;
  }
  size_t next = 0;
  for (swap::OperatorRecord& op : trace.operators)
    if (op.name == kReceive && next < waits.size()) op.seconds = waits[next++];
}

/// Dry runs of the first rank of each place of a pipeline, one after another, because a thread has one Session.
class DryPipeline {
 public:
  DryPipeline(const TrainOptions& options, int world, const std::function<ddl::Comm(int rank)>& comm_of,
              std::shared_ptr<swap::KernelTimes> times)
      : options_(options), copies_(world / options.pipeline.ranks), comm_of_(comm_of), times_(std::move(times)) {}

  /// Returns the steps of ranks that do all work of K-FAC within a step, with these shares.
  std::vector<RankSteps> steps_at_once(int64_t steps, const std::map<std::string, double>& shares) const {
    std::vector<RankSteps> all;
    Stages stages;
    for_each([&](DryRank& rank) {
      rank.take_steps(steps);
      all.push_back(rank.steps(shares));
      stages.note(rank);
    });
    stages.let_wait(all);
    return all;
  }

  /// Returns the steps of a cycle of K-FAC's refreshes, in which they fill bubbles where the options say so.
  std::vector<RankSteps> steps_of_cycle() const {
    std::vector<RankTimes> times;
    std::vector<RankSteps> all;
    Stages stages;
    const bool fills = options_.pipeline.kfac_work == KfacWork::bubbles;
    for_each([&](DryRank& rank) {
      const int64_t cycle = rank.run().kfac()->refreshes().cycle_length();
      rank.take_steps(cycle);
      rank.run().pipelined()->take_cycle_seconds();  // the first refresh is done at once
      const std::vector<std::string> kinds = rank.take_steps(cycle);
      if (fills) times.push_back(rank.run().in_bubbles()->times_of_rank(rank.run().pipelined()->take_cycle_seconds()));
      all.push_back(rank.steps(shares_in(kinds)));
      if (!fills) stages.note(rank);
    });
    if (fills) return filled_steps(times, all);
    stages.let_wait(all);
    return all;
  }

 private:
  /// The stages' seconds, of all ranks.
  class Stages {
   public:
    void note(DryRank& rank) {
      const Pipeline& pipeline = rank.pipeline();
      if (costs_.stages.empty()) {
        plan_ = pipeline.plan;
        costs_ = {.stages = std::vector<pipe::StageSeconds>(plan_.stages()), .message = rank.message_seconds()};
      }
      const auto seconds = rank.run().pipelined()->model().take_stage_seconds();
      for (const PlacedStage& at : plan_.stages_at(pipeline.place)) costs_.stages[at.stage] = seconds[at.stage];
    }

    /// Lets ranks wait as in a simulation of the program.
    void let_wait(std::vector<RankSteps>& all) const {
      const pipe::SimulatedStep simulated = pipe::simulate(plan_.program, costs_);
      for (size_t place = 0; place < all.size(); ++place) {
        std::vector<pipe::FilledItem> items;
        for (const pipe::Span& span : simulated.spans[place])
          items.push_back({.item = span.item, .begin = span.begin, .end = span.end});
        for (KindOfStep& kind : all[place].kinds)
          if (kind.share > 0) set_waits(plan_, place, items, 0, kind.trace);
      }
    }

   private:
    PipelinePlan plan_;
    pipe::Costs costs_;
  };

  template <class Body>
  void for_each(const Body& body) const {
    for (int place = 0; place < options_.pipeline.ranks; ++place) {
      DryRank rank(options_, comm_of_(place * copies_), times_);
      body(rank);
    }
  }

  static std::map<std::string, double> shares_in(const std::vector<std::string>& kinds) {
    std::map<std::string, double> shares;
    for (const std::string& kind : kinds) shares[kind] += 1 / static_cast<double>(kinds.size());
    return shares;
  }

  /// Returns the steps of a cycle that follows the plan of the bubbles from these times. Those before the plan, which a
  /// run begins with, have no share in a long one.
  std::vector<RankSteps> filled_steps(const std::vector<RankTimes>& times, const std::vector<RankSteps>& before) const {
    std::vector<RankSteps> all;
    for_each([&](DryRank& rank) {
      KfacInBubbles& in_bubbles = *rank.run().in_bubbles();
      TORCH_CHECK(in_bubbles.plan_from(times), "[dry run] a piece of K-FAC's work was not done in two cycles");
      rank.take_steps(in_bubbles.cycle());  // the first refresh is done at once
      const std::vector<std::string> kinds = rank.take_steps(in_bubbles.cycle());
      all.push_back(rank.steps(shares_in(kinds)));
      wait_as_planned(in_bubbles.filled(), rank.pipeline(), kinds, all.back());
      add_without_share(before[all.size() - 1], all.back());
    });
    return all;
  }

  /// Adds the kinds of step that `steps` lacks.
  static void add_without_share(const RankSteps& others, RankSteps& steps) {
    for (const KindOfStep& kind : others.kinds) {
      const auto same = [&](const KindOfStep& known) { return known.trace.kind == kind.trace.kind; };
      if (std::none_of(steps.kinds.begin(), steps.kinds.end(), same)) steps.kinds.push_back({0, kind.trace});
    }
    steps.peak_bytes = std::max(steps.peak_bytes, others.peak_bytes);
  }

  /// Lets a rank wait as in the steps of a cycle, whose kinds are `kinds`.
  static void wait_as_planned(const pipe::Filled& filled, const Pipeline& pipeline,
                              const std::vector<std::string>& kinds, RankSteps& steps) {
    const auto& items = filled.items[pipeline.place];
    for (size_t step = 0; step < kinds.size(); ++step) {
      const double free = step > 0 ? items[step - 1].back().end : items.back().back().end - filled.seconds;
      for (KindOfStep& kind : steps.kinds)
        if (kind.trace.kind == kinds[step]) set_waits(pipeline.plan, pipeline.place, items[step], free, kind.trace);
    }
  }

  const TrainOptions options_;
  const int copies_;
  const std::function<ddl::Comm(int rank)> comm_of_;
  const std::shared_ptr<swap::KernelTimes> times_;
};

/// Returns the steps from a refresh of K-FAC to the next one, where layers are renewed in the steps after their
/// statistics; 1 elsewhere.
int64_t late_refresh_interval(const TrainOptions& options) {
  if (!options.kfac.enabled || options.pipeline.refresh == RefreshTurns::at_once) return 1;
  return static_cast<int64_t>(options.kfac.preconditioner.at(0).inverse_interval);
}

/// Returns the options of a run that does within one step what late refreshes would do in their cycle. Their delay is
/// not a delay of a solver's thread, and statistics are as rare as renewals.
TrainOptions with_refreshes_at_once(TrainOptions options) {
  kfac::KfacOptions& kfac = options.kfac.preconditioner;
  if (late_refresh_interval(options) > 1) {
    kfac.staleness = 0;
    kfac.factor_interval = kfac.inverse_interval = kfac.at(0).inverse_interval;
  }
  options.pipeline.refresh = RefreshTurns::at_once;
  options.pipeline.choose_interval = false;
  return options;
}

}  // namespace

RankSteps dry_steps(const TrainOptions& options, ddl::Comm comm, std::shared_ptr<swap::KernelTimes> times) {
  const TrainOptions all_kinds = with_all_kinds(options);
  DryRank rank(all_kinds, std::move(comm), std::move(times));
  rank.take_steps(all_kinds.steps);
  return rank.steps(shares_of(options));
}

std::vector<RankSteps> dry_pipeline_steps(const TrainOptions& asked, int world,
                                          const std::function<ddl::Comm(int rank)>& comm_of,
                                          const std::shared_ptr<swap::KernelTimes>& times) {
  // In longer cycles each step has little of the refreshes' work.
  constexpr int64_t kMaxSteps = 8;
  const int64_t interval = late_refresh_interval(asked);
  if (interval > 1 && interval <= kMaxSteps)
    return DryPipeline(of_dry_run(asked, 2 * interval), world, comm_of, times).steps_of_cycle();
  if (interval > 1) (void)make_dry_context(of_dry_run(asked, kPlainSteps), comm_of(0), times);  // refuses as a run does
  const TrainOptions options = with_refreshes_at_once(asked);
  const TrainOptions all_kinds = with_all_kinds(options);
  return DryPipeline(all_kinds, world, comm_of, times).steps_at_once(all_kinds.steps, shares_of(options));
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
