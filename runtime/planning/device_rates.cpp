#include "runtime/planning/device_rates.h"

#include <algorithm>
#include <cmath>

namespace spillway::runtime {

double decomposition_seconds(const DeviceRates& rates, int64_t side) {
  const auto& table = rates.eigh_seconds;
  if (table.empty()) return 0;
  const auto n = static_cast<double>(side);
  const auto above = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first >= side; });
  if (above == table.begin()) return table.front().second * n / static_cast<double>(table.front().first);
  const auto [low, low_seconds] = *std::prev(above);
  const double ratio = n / static_cast<double>(low);
  if (above == table.end()) return low_seconds * std::pow(ratio, 3);
  const double slope = std::log(above->second / low_seconds) / std::log(static_cast<double>(above->first) / low);
  return low_seconds * std::pow(ratio, slope);
}

}  // namespace spillway::runtime
