#include "swap/schedule.h"

#include <algorithm>

namespace spillway {
namespace {

/// One stay away from the device.
struct Absence {
  int32_t slot;
  int64_t evicted_at;  ///< the operator that needed the room
  int64_t back_at;     ///< the operator that uses it again; kNextUseUnknown: never in sight
  bool needs_copy;
};

/// Walks the step under the budget, evicting the furthest next use.
class Walk {
 public:
  Walk(const StepTrace& trace, int64_t budget_bytes) : trace_(trace), budget_(budget_bytes) {
    resident_.assign(trace.slots.size(), false);
    clean_.assign(trace.slots.size(), false);
    deaths_.resize(trace.operators.size());
    for (size_t s = 0; s < trace.slots.size(); ++s) {
      const Slot& slot = trace.slots[s];
      if (slot.birth == kBeforeStep) resident_[s] = true;
      if (slot.death >= 0) deaths_[static_cast<size_t>(slot.death)].push_back(static_cast<int32_t>(s));
    }
  }

  /// One pass over the step. The second pass starts from what the first left resident, as the next step will.
  void run() {
    absences_.clear();
    returns_.clear();
    used_.assign(trace_.operators.size(), 0);
    held_ = 0;
    in_.clear();
    for (size_t s = 0; s < trace_.slots.size(); ++s) {
      const Slot& slot = trace_.slots[s];
      bool existed = slot.birth == kBeforeStep;
      resident_[s] = existed && resident_[s];
      if (!resident_[s]) continue;
      held_ += slot.bytes;
      in_.push_back(static_cast<int32_t>(s));
    }
    for (size_t i = 0; i < trace_.operators.size(); ++i) step(static_cast<int32_t>(i));
  }

  const std::vector<Absence>& absences() const { return absences_; }
  /// Slots that were absent when an operator needed them: (slot, operator).
  const std::vector<std::pair<int32_t, int32_t>>& returns() const { return returns_; }
  /// Bytes held while each operator ran.
  std::vector<int64_t>& used() { return used_; }

 private:
  void step(int32_t i) {
    const OperatorRecord& op = trace_.operators[static_cast<size_t>(i)];
    for (int32_t s : op.touched)
      if (!resident_[static_cast<size_t>(s)]) {
        const Slot& slot = trace_.slots[static_cast<size_t>(s)];
        if (slot.birth != i) returns_.emplace_back(s, i);
        clean_[static_cast<size_t>(s)] = slot.birth != i;
        enter(s);
      }
    int64_t need = op.own_bytes + op.unpaged_bytes;
    while (held_ + need > budget_ && evict(op, i)) {
    }
    used_[static_cast<size_t>(i)] = held_ + need;
    for (int32_t s : op.births)
      if (!resident_[static_cast<size_t>(s)]) {
        clean_[static_cast<size_t>(s)] = false;
        enter(s);
      }
    for (int32_t s : op.touched)
      if (std::binary_search(trace_.slots[static_cast<size_t>(s)].writes.begin(),
                             trace_.slots[static_cast<size_t>(s)].writes.end(), i))
        clean_[static_cast<size_t>(s)] = false;
    for (int32_t s : deaths_[static_cast<size_t>(i)])
      if (resident_[static_cast<size_t>(s)]) leave(s);
  }

  bool evict(const OperatorRecord& op, int32_t i) {
    int32_t victim = -1;
    int64_t furthest = -1;
    for (int32_t s : in_)
      if (int64_t use = next_use_after(trace_, trace_.slots[static_cast<size_t>(s)], i);
          use > furthest && std::find(op.touched.begin(), op.touched.end(), s) == op.touched.end()) {
        victim = s;
        furthest = use;
      }
    if (victim < 0) return false;
    absences_.push_back({victim, i, furthest, !clean_[static_cast<size_t>(victim)]});
    clean_[static_cast<size_t>(victim)] = true;
    leave(victim);
    return true;
  }

  void enter(int32_t s) {
    resident_[static_cast<size_t>(s)] = true;
    held_ += trace_.slots[static_cast<size_t>(s)].bytes;
    in_.push_back(s);
  }
  void leave(int32_t s) {
    resident_[static_cast<size_t>(s)] = false;
    held_ -= trace_.slots[static_cast<size_t>(s)].bytes;
    std::erase(in_, s);
  }

  const StepTrace& trace_;
  const int64_t budget_;
  std::vector<bool> resident_, clean_;
  std::vector<int32_t> in_;
  std::vector<std::vector<int32_t>> deaths_;
  int64_t held_ = 0;
  std::vector<int64_t> used_;
  std::vector<Absence> absences_;
  std::vector<std::pair<int32_t, int32_t>> returns_;
};

/// The operator after which a copy out of `absence` can start: the last write before the eviction.
int32_t page_out_trigger(const StepTrace& trace, const Absence& absence) {
  const Slot& slot = trace.slots[static_cast<size_t>(absence.slot)];
  auto after = std::lower_bound(slot.writes.begin(), slot.writes.end(), static_cast<int32_t>(absence.evicted_at));
  int32_t last_write = after == slot.writes.begin() ? slot.birth : *std::prev(after);
  return std::max(last_write, 0);
}

void place_page_ins(Schedule& schedule, const StepTrace& trace, const ScheduleInputs& inputs,
                    std::vector<std::pair<int32_t, int32_t>> returns, const std::vector<Absence>& absences,
                    std::vector<int64_t>& used) {
  size_t count = trace.operators.size();
  std::vector<double> start(count + 1, 0);
  for (size_t i = 0; i < count; ++i) start[i + 1] = start[i] + trace.operators[i].seconds;
  // Latest deadline first: the link serves each copy just before the one that follows it.
  std::stable_sort(returns.begin(), returns.end(), [](auto& a, auto& b) { return a.second > b.second; });
  double link_free_until = start[count];
  int64_t limit = inputs.budget_bytes - inputs.slack_bytes;
  for (auto [s, use] : returns) {
    const Slot& slot = trace.slots[static_cast<size_t>(s)];
    int64_t left_at = -1;  // cannot come back before it left; -1: in the step before
    for (const Absence& absence : absences)
      if (absence.slot == s && absence.evicted_at < use) left_at = std::max(left_at, absence.evicted_at);
    // A fifth more than the plain copy time: compute and both directions share the memory bus.
    double seconds = 1.2 * static_cast<double>(slot.bytes) / inputs.in_bytes_per_second;
    double begin = std::min(start[static_cast<size_t>(use)], link_free_until) - seconds;
    int32_t trigger = use - 1;
    while (trigger > left_at && start[static_cast<size_t>(trigger) + 1] > begin &&
           used[static_cast<size_t>(trigger)] + slot.bytes <= limit)
      --trigger;
    for (int32_t i = trigger + 1; i < use; ++i) used[static_cast<size_t>(i)] += slot.bytes;
    link_free_until = begin;
    schedule.page_ins.push_back({s, trigger, use});
    schedule.bytes_in += slot.bytes;
  }
  std::stable_sort(schedule.page_ins.begin(), schedule.page_ins.end(),
                   [](auto& a, auto& b) { return std::pair(a.trigger, a.use) < std::pair(b.trigger, b.use); });
}

}  // namespace

int64_t next_use_after(const StepTrace& trace, const Slot& slot, int64_t index) {
  auto next = std::upper_bound(slot.uses.begin(), slot.uses.end(), static_cast<int32_t>(index));
  if (next != slot.uses.end()) return *next;
  bool persists = slot.birth == kBeforeStep && slot.death == kOutlivesStep;
  if (!persists || slot.uses.empty()) return kNextUseUnknown;
  return static_cast<int64_t>(trace.operators.size()) + slot.uses.front();
}

Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& inputs) {
  Schedule schedule;
  schedule.page_outs_after.resize(trace.operators.size());
  if (inputs.budget_bytes == kUnlimitedBytes) return schedule;
  Walk walk(trace, inputs.budget_bytes - inputs.slack_bytes);
  walk.run();
  walk.run();
  for (const Absence& absence : walk.absences()) {
    if (!absence.needs_copy) continue;
    schedule.page_outs_after[static_cast<size_t>(page_out_trigger(trace, absence))].push_back(absence.slot);
    schedule.bytes_out += trace.slots[static_cast<size_t>(absence.slot)].bytes;
  }
  place_page_ins(schedule, trace, inputs, walk.returns(), walk.absences(), walk.used());
  return schedule;
}

}  // namespace spillway
