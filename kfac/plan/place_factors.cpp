#include "kfac/plan/place_factors.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"

namespace spillway::kfac {
namespace {

double cost_of(const FactorShape& factor, Placement placement, const std::function<double(int64_t, int64_t)>& seconds) {
  if (placement == Placement::lpt_memory) return static_cast<double>(factor.elements());
  if (placement != Placement::measured) return decomposition_cost(factor);
  const double measured = seconds ? seconds(factor.side, factor.count) : 0;
  if (!(measured > 0))
    throw BadRequest(str("[kfac.placement] decomposition_seconds(", factor.side, ", ", factor.count, ") = ", measured,
                         " is outside (0, inf)"));
  const double whole = decomposition_cost({factor.role, factor.side, factor.count});
  return measured * decomposition_cost(factor) / whole;
}

std::set<std::pair<int64_t, int64_t>> sizes_in(const std::vector<LayerShape>& layers) {
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (const auto& layer : layers)
    for (const auto& factor : layer.factors()) sizes.emplace(factor.side, factor.count);
  return sizes;
}

}  // namespace

std::vector<std::vector<double>> decomposition_costs(const std::vector<LayerShape>& layers, Placement placement,
                                                     const std::function<double(int64_t, int64_t)>& seconds) {
  std::vector<std::vector<double>> costs;
  for (const auto& layer : layers) {
    auto& own = costs.emplace_back();
    for (const auto& factor : layer.factors()) own.push_back(cost_of(factor, placement, seconds));
  }
  return costs;
}

std::vector<int64_t> place_longest_first(const std::vector<double>& costs, int64_t world) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(world, 0);
  std::vector<int64_t> rank_of(costs.size());
  for (size_t job : order) {
    auto least = std::min_element(load.begin(), load.end());
    *least += costs[job];
    rank_of[job] = least - load.begin();
  }
  return rank_of;
}

std::vector<std::vector<int64_t>> place_factors(const std::vector<std::vector<double>>& costs, int64_t world,
                                                Placement placement, bool together) {
  const bool in_turn = placement == Placement::round_robin;
  if (in_turn && world <= std::ssize(costs)) together = true;
  std::vector<double> jobs;
  for (const auto& layer : costs) {
    if (together)
      jobs.push_back(std::accumulate(layer.begin(), layer.end(), 0.0));
    else
      jobs.insert(jobs.end(), layer.begin(), layer.end());
  }
  std::vector<int64_t> ranks(jobs.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  std::transform(ranks.begin(), ranks.end(), ranks.begin(), [&](int64_t job) { return job % world; });
  if (!in_turn) ranks = place_longest_first(jobs, world);
  std::vector<std::vector<int64_t>> placed;
  auto next = ranks.begin();
  for (const auto& layer : costs) {
    auto& own = placed.emplace_back();
    for (size_t factor = 0; factor < layer.size(); ++factor) own.push_back(together ? *next : *next++);
    if (together) ++next;
  }
  return placed;
}

std::vector<std::vector<FactorId>> groups_of_one_side(const std::vector<LayerShape>& layers,
                                                      const std::vector<FactorId>& factors) {
  const auto shape_of = [&](const FactorId& id) { return layers[id.layer].factors()[id.factor]; };
  int64_t most = 0;
  for (const auto& id : factors) most = std::max(most, shape_of(id).elements());
  struct Open {
    size_t group;
    int64_t elements;
  };
  std::map<std::pair<int64_t, int64_t>, Open> open;  // by side and rank
  std::vector<std::vector<FactorId>> groups;
  for (const auto& id : factors) {
    const auto shape = shape_of(id);
    const auto [found, is_new] = open.try_emplace({shape.side, shape.rank}, Open{groups.size(), 0});
    auto& [group, elements] = found->second;
    const bool full = elements + shape.elements() > most;
    if (full) group = groups.size(), elements = 0;
    if (is_new || full) groups.emplace_back();
    groups[group].push_back(id);
    elements += shape.elements();
  }
  return groups;
}

std::vector<double> seconds_table(const std::vector<LayerShape>& layers,
                                  const std::function<double(int64_t, int64_t)>& seconds) {
  std::vector<double> table;
  for (const auto& [side, count] : sizes_in(layers)) table.push_back(seconds(side, count));
  return table;
}

std::function<double(int64_t, int64_t)> seconds_from(const std::vector<LayerShape>& layers, std::vector<double> table) {
  std::map<std::pair<int64_t, int64_t>, double> known;
  auto value = table.begin();
  for (const auto& size : sizes_in(layers)) known[size] = *value++;
  return [known = std::move(known)](int64_t side, int64_t count) { return known.at({side, count}); };
}

}  // namespace spillway::kfac
