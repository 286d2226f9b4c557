#include "benchmarks/pipeline/refresh_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spillway::tools {
namespace {

/// The share of itself by which a cycle may become longer and still counts as none.
constexpr double kTolerance = 0.001;

/// Returns turns of all layers in the first step, which serve a cycle later.
std::vector<LayerTurn> turns_together(const EmulatedPipeline& pipeline, int steps) {
  std::vector<LayerTurn> all;
  for (size_t layer = 0; layer < pipeline.layers.size(); ++layer)
    all.push_back({layer, {.taken_step = 0, .serves_step = steps}});
  return all;
}

RefreshPlan planned(const EmulatedPipeline& pipeline, const RefreshRate& rate, const RefreshOptions& options) {
  const std::vector<LayerTurn> turns =
      options.rolling ? rolling_turns(pipeline, rate, options.staleness) : turns_together(pipeline, rate.steps);
  RefreshPlan plan{.rate = rate, .extras = refresh_work(pipeline, turns, options.pieces)};
  plan.filled = pipe::fill(pipeline.program, plan.extras, pipeline.costs, {.steps = rate.steps});
  return plan;
}

/// Returns the rates whose work is not longer than all waits, the highest first.
std::vector<RefreshRate> rates_to_try(const EmulatedPipeline& pipeline, bool rolling) {
  const pipe::Filled alone = pipe::fill(pipeline.program, {}, pipeline.costs, {.steps = 1});
  const double busy = std::accumulate(alone.busy.begin(), alone.busy.end(), 0.0);
  const double waits = alone.seconds * pipeline.ranks() - busy, work = pipeline.refresh_seconds();
  std::vector<RefreshRate> rates;
  for (int steps = 1; steps <= kMaxCycleSteps; ++steps)
    for (int turns = 1; turns <= (rolling ? steps : 1); ++turns)
      if (std::gcd(turns, steps) == 1 && turns * work <= steps * waits) rates.push_back({turns, steps});
  std::stable_sort(rates.begin(), rates.end(),
                   [](const RefreshRate& a, const RefreshRate& b) { return a.turns * b.steps > b.turns * a.steps; });
  return rates;
}

}  // namespace

std::vector<LayerTurn> rolling_turns(const EmulatedPipeline& pipeline, const RefreshRate& rate, int staleness) {
  std::vector<double> costs;
  for (const EmulatedLayer& layer : pipeline.layers) costs.push_back(layer.input.inversion + layer.output.inversion);
  const int delay = std::min(staleness, rate.steps);
  const std::vector<pipe::LayerRefresh> first = pipe::rolling_refresh(costs, rate.steps, delay);
  std::vector<LayerTurn> all;
  for (int i = 0; i < rate.turns; ++i)
    for (size_t layer = 0; layer < first.size(); ++layer) {
      const int taken = (first[layer].taken_step + i * rate.steps / rate.turns) % rate.steps;
      all.push_back({layer, {.taken_step = taken, .serves_step = taken + delay}});
    }
  return all;
}

std::vector<pipe::Extra> refresh_work(const EmulatedPipeline& pipeline, const std::vector<LayerTurn>& turns,
                                      int pieces) {
  const pipe::StepProgram& program = pipeline.program;
  const auto& rank_of = program.graph.rank_of;
  std::vector<std::vector<double>> load(program.graph.stages, std::vector<double>(rank_of.size(), 0));  // by copy
  std::vector<pipe::Extra> extras;
  for (const auto& [number, turn] : turns) {
    const EmulatedLayer& layer = pipeline.layers[number];
    for (const FactorSeconds* factor : {&layer.input, &layer.output}) {
      const pipe::Work work = factor == &layer.input ? pipe::Work::forward : program.backward_work();
      pipe::Extra extra{.taken_step = turn.taken_step, .serves_step = turn.serves_step};
      std::vector<int> statistics;
      for (int m = 0; m < program.micro_batches(); ++m) {
        statistics.push_back(static_cast<int>(extras.size()));
        extra.rank = program.rank_of(layer.stage, m);
        extra.seconds = factor->statistics;
        extra.ready = {work, layer.stage, m};
        extras.push_back(extra);
      }
      auto& of_copies = load[layer.stage];
      const auto copy = std::min_element(of_copies.begin(), of_copies.end()) - of_copies.begin();
      of_copies[copy] += factor->inversion;
      extra.rank = rank_of[copy][layer.stage];
      const auto own = std::find_if(statistics.begin(), statistics.end(),
                                    [&](int before) { return extras[before].rank == extra.rank; });
      extra.ready = extras[*own].ready;
      extra.seconds = factor->inversion;
      extra.pieces = pieces;
      extra.after = std::move(statistics);
      extras.push_back(std::move(extra));
    }
  }
  return extras;
}

RefreshPlan plan_refresh(const EmulatedPipeline& pipeline, const RefreshOptions& options) {
  if (options.interval) return planned(pipeline, {.turns = 1, .steps = *options.interval}, options);
  for (const RefreshRate& rate : rates_to_try(pipeline, options.rolling)) {
    RefreshPlan plan = planned(pipeline, rate, options);
    if (plan.filled.exceeded_seconds() <= kTolerance * plan.filled.unfilled_seconds) return plan;
  }
  return planned(pipeline, {.turns = 1, .steps = kMaxCycleSteps}, options);
}

}  // namespace spillway::tools
