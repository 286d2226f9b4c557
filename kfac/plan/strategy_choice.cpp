#include "kfac/plan/strategy_choice.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kfac/plan/factor_traffic.h"

namespace spillway::kfac {
namespace {

struct Cost {
  int64_t bytes = 0;            // on the rank that needs the most
  double traffic_per_step = 0;  // into the busiest rank
};

Cost cost_of(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options) {
  const auto assignments = assign(layers, world, options);
  const auto now = options.in_long_run();
  Cost cost;
  for (const auto& bytes : bytes_per_rank(layers, assignments)) cost.bytes = std::max(cost.bytes, bytes.peak());
  for (const auto& traffic : traffic_per_rank(layers, assignments, options.factor_dtype))
    cost.traffic_per_step =
        std::max(cost.traffic_per_step, static_cast<double>(traffic.gradients) +
                                            static_cast<double>(traffic.factors) / now.factor_interval +
                                            static_cast<double>(traffic.eigenbases) / now.inverse_interval);
  return cost;
}

}  // namespace

std::vector<StrategyChoice> exact_choices(int64_t world) {
  std::vector<StrategyChoice> choices{{Strategy::comm_opt, 1}};
  for (auto strategy : {Strategy::hybrid, Strategy::owner_reduce})
    for (int64_t workers = world; workers >= 1; --workers)
      choices.push_back({strategy, static_cast<double>(workers) / static_cast<double>(world)});
  return choices;
}

KfacOptions with(KfacOptions options, const StrategyChoice& choice) {
  options.strategy = choice.strategy;
  options.grad_worker_frac = choice.grad_worker_frac;
  return options;
}

StrategyChoice choose_strategy(const std::vector<LayerShape>& layers, int64_t world, const KfacOptions& options,
                               int64_t most_bytes) {
  StrategyChoice best;
  std::tuple<bool, double, int64_t> best_key;
  bool first = true;
  for (const auto& choice : exact_choices(world)) {
    const auto cost = cost_of(layers, world, with(options, choice));
    const bool too_large = cost.bytes > most_bytes;
    // Choices that do not fit are compared by bytes alone.
    const std::tuple key{too_large, too_large ? 0 : cost.traffic_per_step, cost.bytes};
    if (!first && !(key < best_key)) continue;
    first = false;
    best = choice;
    best_key = key;
  }
  return best;
}

}  // namespace spillway::kfac
