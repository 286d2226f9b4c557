#include "swap/schedule/replay_plan.h"

#include <algorithm>

namespace spillway {
namespace {

const OperatorRecord& operator_at(const StepTrace& trace, int32_t i) {
  return trace.operators[static_cast<size_t>(i)];
}
const Slot& slot_at(const StepTrace& trace, int32_t s) {
  return trace.slots[static_cast<size_t>(s)];
}
bool contains(const std::vector<int32_t>& sorted, int32_t i) {
  return std::binary_search(sorted.begin(), sorted.end(), i);
}

/// What the operator is given, whole or window by window. A replay needs all of it whole.
std::vector<int32_t> arguments_of(const OperatorRecord& op) {
  std::vector<int32_t> arguments = op.touched;
  arguments.insert(arguments.end(), op.streamed.begin(), op.streamed.end());
  return arguments;
}

/// What the replay reads, each once.
std::vector<int32_t> inputs_of(const StepTrace& trace, const Replay& replay) {
  std::vector<int32_t> inputs;
  for (int32_t i : replay.operators)
    for (int32_t s : arguments_of(operator_at(trace, i)))
      if (s != replay.slot) inputs.push_back(s);
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  return inputs;
}

/// Whether operator `i`, as a maker of `slot`, reads only what is the same at `use`.
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
  std::vector<Replay> ordered(replays.begin(), replays.end());
  std::stable_sort(ordered.begin(), ordered.end(), [](auto& a, auto& b) { return a.before < b.before; });
  ReplayedTrace result{{}, {}, {}};
  StepTrace& out = result.trace;
  out.kind = trace.kind;
  out.tail_seconds = trace.tail_seconds;
  out.tail_excess_seconds = trace.tail_excess_seconds;
  out.slots = trace.slots;
  for (size_t s = 0; s < trace.slots.size(); ++s) result.original_slot.push_back(static_cast<int32_t>(s));

  // Where each operator goes.
  std::vector<int32_t> moved(trace.operators.size());
  std::vector<int32_t> inserted(ordered.size());
  size_t next = 0;
  for (size_t i = 0; i < trace.operators.size(); ++i) {
    for (; next < ordered.size() && ordered[next].before == static_cast<int32_t>(i); ++next) {
      inserted[next] = static_cast<int32_t>(out.operators.size());
      out.operators.emplace_back();
      result.original_operator.push_back(-1);
    }
    moved[i] = static_cast<int32_t>(out.operators.size());
    out.operators.push_back(trace.operators[i]);
    result.original_operator.push_back(static_cast<int32_t>(i));
  }
  for (Slot& slot : out.slots) {
    if (slot.birth >= 0) slot.birth = moved[static_cast<size_t>(slot.birth)];
    if (slot.death >= 0) slot.death = moved[static_cast<size_t>(slot.death)];
    for (auto* list : {&slot.uses, &slot.writes})
      for (int32_t& i : *list) i = moved[static_cast<size_t>(i)];
  }

  // The slot as it is from the replay on.
  std::vector<int32_t> again(trace.slots.size(), -1);
  for (size_t r = 0; r < ordered.size(); ++r) {
    const auto s = static_cast<int32_t>(out.slots.size());
    const auto before = static_cast<size_t>(ordered[r].slot);
    again[before] = s;
    Slot later = out.slots[before];
    Slot& earlier = out.slots[before];
    auto split = [&](std::vector<int32_t>& early, std::vector<int32_t>& late) {
      auto at = std::lower_bound(early.begin(), early.end(), inserted[r]);
      late.assign(at, early.end());
      late.insert(late.begin(), inserted[r]);
      early.erase(at, early.end());
    };
    split(earlier.uses, later.uses);
    split(earlier.writes, later.writes);
    for (int32_t i : later.uses) {
      OperatorRecord& op = out.operators[static_cast<size_t>(i)];
      for (auto* list : {&op.touched, &op.streamed, &op.births})
        std::replace(list->begin(), list->end(), ordered[r].slot, s);
    }
    earlier.death = moved[static_cast<size_t>(ordered[r].discard_after)];
    later.birth = inserted[r];
    later.born_as_output = true;
    later.born_streamed = false;
    out.slots.push_back(std::move(later));
    result.original_slot.push_back(ordered[r].slot);
  }

  for (size_t r = 0; r < ordered.size(); ++r) {
    const Replay& replay = ordered[r];
    const int32_t made = again[static_cast<size_t>(replay.slot)];
    OperatorRecord op;
    op.name = "replay";
    op.own_bytes = out.slots[static_cast<size_t>(made)].bytes;
    op.unpaged_bytes = trace.operators[static_cast<size_t>(replay.before)].unpaged_bytes;
    for (int32_t i : replay.operators) {
      op.seconds += operator_at(trace, i).seconds;
      const bool whole = std::find(operator_at(trace, i).streamed.begin(), operator_at(trace, i).streamed.end(),
                                   replay.slot) == operator_at(trace, i).streamed.end();
      const int64_t beside = whole ? 0 : out.slots[static_cast<size_t>(made)].bytes;
      op.own_bytes = std::max(op.own_bytes, operator_at(trace, i).own_bytes + beside);
    }
    for (int32_t s : inputs_of(trace, replay)) {
      const int32_t later = again[static_cast<size_t>(s)];
      const int32_t now = later >= 0 && out.slots[static_cast<size_t>(later)].birth < inserted[r] ? later : s;
      Slot& input = out.slots[static_cast<size_t>(now)];
      op.touched.push_back(now);
      op.leased_bytes += input.bytes;
      input.uses.insert(std::lower_bound(input.uses.begin(), input.uses.end(), inserted[r]), inserted[r]);
    }
    op.births = {made};
    out.operators[static_cast<size_t>(inserted[r])] = std::move(op);
  }
  return result;
}

}  // namespace spillway
