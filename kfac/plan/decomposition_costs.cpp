#include "kfac/plan/decomposition_costs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace spillway::kfac {

void DecompositionCosts::validate() const {
  if (points.empty()) throw BadRequest("[kfac.decomposition_costs] there are no points; one is needed at least");
  Point last;
  for (const auto& point : points) {
    // Written so that NaN fails too.
    if (!(point.side > last.side && point.seconds > 0 && point.seconds >= last.seconds && std::isfinite(point.seconds)))
      throw BadRequest(str("[kfac.decomposition_costs] side ", point.side, " in ", point.seconds, " s after side ",
                           last.side, " in ", last.seconds, " s: sides must rise, seconds be above 0 and not fall"));
    last = point;
  }
}

double DecompositionCosts::decomposition_seconds(int64_t side, int64_t groups) const {
  validate();
  if (side < 1 || groups < 1)
    throw BadRequest(str("[kfac.decomposition_costs] side = ", side, ", groups = ", groups, "; allowed is 1 and more"));
  const auto next = std::lower_bound(points.begin(), points.end(), side,
                                     [](const Point& point, int64_t wanted) { return point.side < wanted; });
  const auto log_ratio = [](double a, double b) { return std::log(a / b); };
  const auto n = static_cast<double>(side), count = static_cast<double>(groups);
  if (next == points.begin()) return count * next->seconds;
  const auto& low = *(next - 1);
  const double low_side = static_cast<double>(low.side);
  if (next == points.end()) return count * low.seconds * std::pow(n / low_side, 3);
  // t = t₀ (n/n₀)^p,  p = ln(t₁/t₀) / ln(n₁/n₀)
  const double power = log_ratio(next->seconds, low.seconds) / log_ratio(static_cast<double>(next->side), low_side);
  return count * low.seconds * std::pow(n / low_side, power);
}

}  // namespace spillway::kfac
