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

}  // namespace spillway::pipe
