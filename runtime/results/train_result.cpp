#include "runtime/results/train_result.h"

#include <algorithm>
#include <limits>

#include "core/median.h"

namespace spillway {
namespace {

/// Returns the median time of the first `count` steps, without the first two where more are left.
double median_of_steps(const TrainResult& result, size_t count) {
  return median({result.step_seconds.begin() + (count > 2 ? 2 : 0), result.step_seconds.begin() + count});
}

}  // namespace

KfacSummary::Spread KfacSummary::over_ranks(const kfac::KfacPhase& phase) const {
  if (seconds_by_rank.empty()) return {};
  Spread spread{.fastest = std::numeric_limits<double>::infinity()};
  for (const kfac::KfacSeconds& of_rank : seconds_by_rank) {
    const double own = of_rank.*phase.seconds;
    spread.slowest = std::max(spread.slowest, own);
    spread.fastest = std::min(spread.fastest, own);
    spread.mean += own / static_cast<double>(seconds_by_rank.size());
  }
  return spread;
}

double TrainResult::median_step_seconds() const {
  return median_of_steps(*this, step_seconds.size());
}

double step_time_ratio(const TrainResult& run, const TrainResult& base) {
  const size_t common = std::min(run.step_seconds.size(), base.step_seconds.size());
  const double divisor = median_of_steps(base, common);
  return divisor > 0 ? median_of_steps(run, common) / divisor : 0;
}

}  // namespace spillway
