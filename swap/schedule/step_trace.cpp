#include "swap/schedule/step_trace.h"

#include <algorithm>

namespace spillway::swap {

int64_t StepTrace::floor_bytes(size_t* index) const {
  int64_t floor = 0;
  for (size_t i = 0; i < operators.size(); ++i) {
    const OperatorRecord& op = operators[i];
    int64_t need = op.leased_bytes + op.own_bytes + op.unpaged_bytes;
    if (need <= floor) continue;
    floor = need;
    if (index) *index = i;
  }
  return floor;
}

int64_t StepTrace::unconstrained_peak_bytes() const {
  std::vector<int64_t> live = live_bytes(*this);
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

std::vector<int64_t> live_bytes(const StepTrace& trace) {
  size_t count = trace.operators.size();
  std::vector<int64_t> change(count + 1, 0);
  for (const Slot& slot : trace.slots) {
    // An output is part of its operator's own bytes, and counted as a slot from the next operator on.
    size_t from = slot.birth == kBeforeStep ? 0 : static_cast<size_t>(slot.birth) + (slot.born_as_output ? 1 : 0);
    size_t to = slot.death == kOutlivesStep ? count : static_cast<size_t>(slot.death) + 1;
    if (from >= to || from >= count) continue;
    change[from] += slot.bytes;
    change[std::min(to, count)] -= slot.bytes;
  }
  std::vector<int64_t> live(count);
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += change[i];
    live[i] = sum + trace.operators[i].own_bytes + trace.operators[i].unpaged_bytes;
  }
  return live;
}

void StepTrace::add_external(int64_t bytes) {
  for (OperatorRecord& op : operators) op.unpaged_bytes += bytes;
  external_bytes += bytes;
}

double StepTrace::compute_seconds() const {
  double seconds = tail_seconds;
  for (const OperatorRecord& op : operators) seconds += op.seconds + op.host_seconds;
  return seconds;
}

double StepTrace::shortest_seconds() const {
  double seconds = compute_seconds() - tail_excess_seconds;
  for (const OperatorRecord& op : operators) seconds -= op.excess_seconds;
  return seconds;
}

int64_t next_use_after(const StepTrace& trace, const Slot& slot, int64_t index) {
  auto next = std::upper_bound(slot.uses.begin(), slot.uses.end(), index);
  if (next != slot.uses.end()) return *next;
  bool persists = slot.birth == kBeforeStep && slot.death == kOutlivesStep;
  if (!persists || slot.uses.empty()) return kNextUseUnknown;
  return std::ssize(trace.operators) + slot.uses.front();
}

}  // namespace spillway::swap
