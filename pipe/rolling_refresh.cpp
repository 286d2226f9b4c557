#include "pipe/rolling_refresh.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace spillway::pipe {

std::vector<LayerRefresh> rolling_refresh(std::span<const double> layer_costs, int interval, int staleness) {
  if (interval < 1 || staleness < 0 || staleness > interval)
    throw BadRequest(str("[pipe] turns in an interval of ", interval, " steps, used ", staleness,
                         " steps later; allowed: intervals from 1, and 0 to the interval"));
  std::vector<size_t> order(layer_costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return layer_costs[a] > layer_costs[b]; });
  std::vector<double> load(interval, 0);  // by step
  std::vector<LayerRefresh> all(layer_costs.size());
  for (size_t layer : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += layer_costs[layer];
    const int taken = static_cast<int>(least - load.begin());
    all[layer] = {.taken_step = taken, .serves_step = taken + staleness};
  }
  return all;
}

}  // namespace spillway::pipe
