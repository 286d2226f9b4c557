#include "pipe/turns.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace spillway::pipe {

std::vector<Turn> turns(std::span<const double> costs, int interval, int staleness) {
  if (interval < 1 || staleness < 0 || staleness > interval)
    throw BadRequest(str("[pipe] turns in an interval of ", interval, " steps, used ", staleness,
                         " steps later; allowed: intervals from 1, and 0 to the interval"));
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(interval, 0);
  std::vector<Turn> all(costs.size());
  for (size_t layer : order) {
    const auto step = std::min_element(load.begin(), load.end());
    *step += costs[layer];
    const int taken = static_cast<int>(step - load.begin());
    all[layer] = {.taken_step = taken, .serves_step = taken + staleness};
  }
  return all;
}

int least_interval(const Program& program, std::span<const double> layer_costs, int staleness, int most,
                   const RefreshOf& refresh_of, const Costs& costs, const FillOptions& options, double tolerance) {
  if (most < std::max(1, staleness))
    throw BadRequest(str("[pipe] an interval of at most ", most, " steps, and a staleness of ", staleness));
  FillOptions own = options;
  for (own.steps = std::max(1, staleness); own.steps < most; ++own.steps) {
    const auto extras = refresh_of(turns(layer_costs, own.steps, staleness));
    const Filled filled = fill(program, extras, costs, own);
    if (filled.exceeded_seconds() <= tolerance * filled.unfilled_seconds) break;
  }
  return own.steps;
}

}  // namespace spillway::pipe
