#include "swap/schedule/replay.h"

#include <algorithm>

namespace spillway::swap {
namespace {

const OperatorRecord& operator_at(const StepTrace& trace, int32_t i) {
  return trace.operators[i];
}
const Slot& slot_at(const StepTrace& trace, int32_t s) {
  return trace.slots[s];
}
bool contains(const std::vector<int32_t>& sorted, int32_t i) {
  return std::binary_search(sorted.begin(), sorted.end(), i);
}

/// Returns the slots that the operator is given, whole or window by window. A replay needs all of them whole.
std::vector<int32_t> arguments_of(const OperatorRecord& op) {
  std::vector<int32_t> arguments = op.touched;
  arguments.insert(arguments.end(), op.streamed.begin(), op.streamed.end());
  return arguments;
}

/// Returns the slots that the replay reads, each once.
std::vector<int32_t> inputs_of(const StepTrace& trace, const Replay& replay) {
  std::vector<int32_t> inputs;
  for (int32_t i : replay.operators)
    for (int32_t s : arguments_of(operator_at(trace, i)))
      if (s != replay.slot) inputs.push_back(s);
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  return inputs;
}

/// True when operator `i`, as a maker of `slot`, reads only slots whose bytes are the same at `use`.
bool can_run_again(const StepTrace& trace, int32_t slot, int32_t i, int32_t use) {
  const OperatorRecord& op = operator_at(trace, i);
  if (!op.replayable) return false;
  for (int32_t s : arguments_of(op)) {
    if (s == slot) continue;
    const Slot& input = slot_at(trace, s);
    if (contains(input.writes, i)) return false;  // writes something else too
    if (input.death != kOutlivesStep && input.death < use) return false;
    auto next_write = std::upper_bound(input.writes.begin(), input.writes.end(), i);
    if (next_write != input.writes.end() && *next_write <= use) return false;
  }
  return true;
}

bool away_at(const Replay& replay, int32_t i) {
  return replay.discard_after < i && i <= replay.before;
}

/// Builds the trace of a step that replays, in three passes.
class ReplayedTraceBuilder {
 public:
  ReplayedTraceBuilder(const StepTrace& trace, std::span<const Replay> replays)
      : trace_(trace),
        replays_(replays.begin(), replays.end()),
        out_(result_.trace),
        moved_(trace.operators.size()),
        inserted_(replays.size()),
        again_(trace.slots.size(), -1) {
    std::stable_sort(replays_.begin(), replays_.end(), [](auto& a, auto& b) { return a.before < b.before; });
    out_.kind = trace.kind;
    out_.tail_seconds = trace.tail_seconds;
    out_.tail_excess_seconds = trace.tail_excess_seconds;
    out_.slots = trace.slots;
    out_.messages = trace.messages;
    for (size_t s = 0; s < trace.slots.size(); ++s) result_.original_slot.push_back(s);
  }

  /// Makes room for the replays between the operators, and renumbers everything that refers to operators.
  void insert_operators() {
    size_t next = 0;
    for (size_t i = 0; i < trace_.operators.size(); ++i) {
      for (; next < replays_.size() && replays_[next].before == static_cast<int32_t>(i); ++next)
        inserted_[next] = append({}, -1);
      moved_[i] = append(trace_.operators[i], i);
    }
    for (Slot& slot : out_.slots) {
      if (slot.birth >= 0) slot.birth = moved(slot.birth);
      if (slot.death >= 0) slot.death = moved(slot.death);
      for (auto* list : {&slot.uses, &slot.writes})
        for (int32_t& i : *list) i = moved(i);
    }
    for (Message& message : out_.messages) {
      if (message.after >= 0) message.after = moved(message.after);
      message.before = message.before < std::ssize(trace_.operators) ? moved(message.before) : out_.operators.size();
    }
  }

  /// Splits each replayed slot in two: one until it is discarded, one from the replay on.
  void split_slots() {
    for (size_t r = 0; r < replays_.size(); ++r) split_slot(replays_[r], inserted_[r]);
  }

  /// Fills in how long each inserted operator takes, and the slots and bytes that it reads and needs.
  void describe_replays() {
    for (size_t r = 0; r < replays_.size(); ++r) op(inserted_[r]) = replay_operator(replays_[r], inserted_[r]);
  }

  ReplayedTrace take() { return std::move(result_); }

 private:
  int32_t append(const OperatorRecord& record, int32_t original) {
    out_.operators.push_back(record);
    result_.original_operator.push_back(original);
    return std::ssize(out_.operators) - 1;
  }

  void split_slot(const Replay& replay, int32_t inserted) {
    const int32_t s = out_.slots.size();
    again_[replay.slot] = s;
    Slot later = slot(replay.slot);
    Slot& earlier = slot(replay.slot);
    const auto split = [inserted](std::vector<int32_t>& prefetch_early, std::vector<int32_t>& late) {
      auto at = std::lower_bound(prefetch_early.begin(), prefetch_early.end(), inserted);
      late.assign(at, prefetch_early.end());
      late.insert(late.begin(), inserted);
      prefetch_early.erase(at, prefetch_early.end());
    };
    split(earlier.uses, later.uses);
    split(earlier.writes, later.writes);
    for (int32_t i : later.uses)
      for (auto* list : {&op(i).touched, &op(i).streamed, &op(i).births})
        std::replace(list->begin(), list->end(), replay.slot, s);
    earlier.death = moved(replay.discard_after);
    later.birth = inserted;
    later.born_as_output = true;
    later.born_streamed = false;
    out_.slots.push_back(std::move(later));
    result_.original_slot.push_back(replay.slot);
  }

  OperatorRecord replay_operator(const Replay& replay, int32_t inserted) {
    const int32_t made = again_[replay.slot];
    OperatorRecord record;
    record.name = "replay";
    record.births = {made};
    record.own_bytes = slot(made).bytes;
    record.unpaged_bytes = operator_at(trace_, replay.before).unpaged_bytes;
    for (int32_t i : replay.operators) {
      const OperatorRecord& maker = operator_at(trace_, i);
      const bool streams = std::find(maker.streamed.begin(), maker.streamed.end(), replay.slot) != maker.streamed.end();
      record.seconds += maker.seconds;
      record.own_bytes = std::max(record.own_bytes, maker.own_bytes + (streams ? slot(made).bytes : 0));
    }
    for (int32_t s : inputs_of(trace_, replay)) {
      const int32_t later = again_[s];
      const int32_t now = later >= 0 && slot(later).birth < inserted ? later : s;
      Slot& input = slot(now);
      record.touched.push_back(now);
      record.leased_bytes += input.bytes;
      input.uses.insert(std::lower_bound(input.uses.begin(), input.uses.end(), inserted), inserted);
    }
    return record;
  }

  int32_t moved(int32_t i) const { return moved_[i]; }
  Slot& slot(int32_t s) { return out_.slots[s]; }
  OperatorRecord& op(int32_t i) { return out_.operators[i]; }

  const StepTrace& trace_;
  std::vector<Replay> replays_;  // sorted by the operator that they come before
  ReplayedTrace result_{{}, {}, {}};
  StepTrace& out_;
  std::vector<int32_t> moved_;     // by operator of the original trace: where it is now
  std::vector<int32_t> inserted_;  // by replay: its operator in the new trace
  std::vector<int32_t> again_;     // by slot of the original trace: the slot from its replay on; −1: none
};

}  // namespace

Replay replay_before(const StepTrace& trace, int32_t slot, int32_t use) {
  const Slot& s = slot_at(trace, slot);
  Replay replay{slot, -1, use, use, {}};
  auto at = std::lower_bound(s.uses.begin(), s.uses.end(), use);
  if (s.birth < 0 || !(s.born_as_output || s.born_streamed) || at == s.uses.begin() || at == s.uses.end() || *at != use)
    return replay;
  replay.discard_after = *std::prev(at);
  std::vector<int32_t> makers;
  for (int32_t i : s.writes)
    if (i <= replay.discard_after) makers.push_back(i);
  if (makers.empty() || makers.front() != s.birth) return replay;
  for (int32_t i : makers)
    if (!can_run_again(trace, slot, i, use)) return replay;
  replay.operators = std::move(makers);
  return replay;
}

bool compatible(const StepTrace& trace, const Replay& replay, std::span<const Replay> others) {
  for (const Replay& other : others) {
    if (other.slot == replay.slot) return false;
    for (int32_t s : inputs_of(trace, replay))
      if (s == other.slot && away_at(other, replay.before)) return false;
    for (int32_t s : inputs_of(trace, other))
      if (s == replay.slot && away_at(replay, other.before)) return false;
  }
  return true;
}

ReplayedTrace with_replays(const StepTrace& trace, std::span<const Replay> replays) {
  ReplayedTraceBuilder builder(trace, replays);
  builder.insert_operators();
  builder.split_slots();
  builder.describe_replays();
  return builder.take();
}

}  // namespace spillway::swap
