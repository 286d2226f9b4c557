#include "swap/schedule/lower_bound.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/bytes.h"
#include "swap/schedule/replay.h"

namespace spillway::swap {
namespace {

/// Bytes that could be absent while each operator runs, by the cost of that absence.
struct Absentable {
  explicit Absentable(size_t operators) : free(operators + 1), persistent(operators + 1) {}
  std::vector<int64_t> free;        ///< bytes that can be made again, or that have no use in sight
  std::vector<int64_t> persistent;  ///< bytes used in every step: must come in once a step, at any time
};

/// Adds `bytes` to the operators in (after, before), as differences.
void add(std::vector<int64_t>& differences, int32_t after, int32_t before, int64_t bytes) {
  if (after + 1 >= before) return;
  differences[after + 1] += bytes;
  differences[before] -= bytes;
}

Absentable absentable(const StepTrace& trace) {
  const int32_t count = trace.operators.size();
  Absentable away(trace.operators.size());
  for (size_t s = 0; s < trace.slots.size(); ++s) {
    const Slot& slot = trace.slots[s];
    const int32_t end = slot.death == kOutlivesStep ? count : slot.death + 1;
    const bool persists = slot.birth == kBeforeStep && slot.death == kOutlivesStep && !slot.uses.empty();
    int32_t last = slot.birth == kBeforeStep ? -1 : slot.birth;
    for (int32_t use : slot.uses) {
      if (persists)
        add(away.persistent, last, use, slot.bytes);
      else if (slot.birth == kBeforeStep || !replay_before(trace, s, use).operators.empty())
        add(away.free, last, use, slot.bytes);
      last = use;
      // The slot's windows leave and come while the operator runs.
      const std::vector<int32_t>& streamed = trace.operators[use].streamed;
      if (std::find(streamed.begin(), streamed.end(), s) != streamed.end())
        add(away.free, use - 1, use + 1, slot.bytes);
    }
    add(persists ? away.persistent : away.free, last, end, slot.bytes);
  }
  for (auto* differences : {&away.free, &away.persistent})
    std::partial_sum(differences->begin(), differences->end(), differences->begin());
  return away;
}

}  // namespace

double bound_seconds(const StepTrace& trace, int64_t budget_bytes, const LinkRates& rates) {
  const double compute = trace.shortest_seconds();
  double bound = compute;
  if (budget_bytes == kUnlimitedBytes) return bound;
  const std::vector<int64_t> live = live_bytes(trace);
  const Absentable away = absentable(trace);
  double before = 0;
  for (size_t i = 0; i < trace.operators.size(); ++i) {
    auto beyond = [&](int64_t free) {
      return static_cast<double>(std::max<int64_t>(0, live[i] - budget_bytes - free));
    };
    const double must_come = beyond(away.free[i]);
    const double must_move = beyond(away.free[i] + away.persistent[i]);
    const double out = must_move / rates.out_bytes_per_second, in = must_move / rates.in_bytes_per_second;
    bound = std::max(
        {bound, must_come / rates.in_bytes_per_second, std::max(before, out) + std::max(compute - before, in)});
    const OperatorRecord& op = trace.operators[i];
    before += op.seconds + op.host_seconds - op.excess_seconds;
  }
  return bound;
}

}  // namespace spillway::swap
