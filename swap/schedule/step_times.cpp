#include "swap/schedule/step_times.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace spillway::swap {
namespace {

/// Bytes below which a lane's copies say nothing about its rate.
constexpr int64_t kEnoughToMeasure = 1 << 20;

}  // namespace

void StepTimes::note(const StepTrace& trace, const LaneTotals& lanes) {
  Step step{{}, 0, lanes};
  step.operators.reserve(trace.operators.size() + 1);
  for (const OperatorRecord& op : trace.operators) step.operators.push_back({op.seconds, op.host_seconds});
  step.operators.push_back({0, trace.tail_seconds});
  shortest_.resize(step.operators.size(), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < shortest_.size(); ++i) {
    const double seconds = step.operators[i].sum();
    step.seconds += seconds;
    shortest_[i] = std::min(shortest_[i], seconds);
  }
  latest_.push_back(std::move(step));
  if (latest_.size() > kLatest) latest_.pop_front();
}

/// Returns the latest steps except the slowest and the fastest. Of two steps it returns the faster one, because a slow
/// step is more often out of the ordinary.
std::vector<const StepTimes::Step*> StepTimes::typical_steps() const {
  std::vector<const Step*> steps;
  for (const Step& step : latest_) steps.push_back(&step);
  std::sort(steps.begin(), steps.end(), [](const Step* a, const Step* b) { return a->seconds < b->seconds; });
  if (steps.size() > 1) steps.pop_back();
  if (steps.size() > 1) steps.erase(steps.begin());
  return steps;
}

void StepTimes::apply_to(StepTrace& trace) const {
  const std::vector<const Step*> steps = typical_steps();
  auto mean = [&](size_t i) {
    OperatorSeconds sum;
    for (const Step* step : steps) {
      sum.kernel += step->operators[i].kernel;
      sum.host += step->operators[i].host;
    }
    const auto count = static_cast<double>(steps.size());
    return OperatorSeconds{sum.kernel / count, sum.host / count};
  };
  // The shortest times are those of any step, so the typical ones may come out below them by a rounding.
  auto excess = [&](size_t i, const OperatorSeconds& typical) { return std::max(0.0, typical.sum() - shortest_[i]); };
  const size_t count = trace.operators.size();
  for (size_t i = 0; i < count; ++i) {
    const OperatorSeconds typical = mean(i);
    OperatorRecord& op = trace.operators[i];
    op.seconds = typical.kernel;
    op.host_seconds = typical.host;
    op.excess_seconds = excess(i, typical);
  }
  const OperatorSeconds tail = mean(count);
  trace.tail_seconds = tail.host;
  trace.tail_excess_seconds = excess(count, tail);
}

LinkRates StepTimes::rates(LinkRates before) const {
  auto measure = [&](CopyTotals LaneTotals::*lane, double& rate) {
    CopyTotals sum;
    for (const Step& step : latest_) {
      sum.bytes += (step.lanes.*lane).bytes;
      sum.seconds += (step.lanes.*lane).seconds;
    }
    if (sum.bytes >= kEnoughToMeasure && sum.seconds > 0) rate = static_cast<double>(sum.bytes) / sum.seconds;
  };
  measure(&LaneTotals::out, before.out_bytes_per_second);
  measure(&LaneTotals::in, before.in_bytes_per_second);
  measure(&LaneTotals::to_disk, before.to_disk_bytes_per_second);
  measure(&LaneTotals::from_disk, before.from_disk_bytes_per_second);
  return before;
}

}  // namespace spillway::swap
