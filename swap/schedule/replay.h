/// Replays, which run a cheap producer again instead of copying its result.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// A slot that is discarded without a copy after one use, and made again before the next.
struct Replay {
  int32_t slot;
  int32_t discard_after;           ///< its last use before the gap
  int32_t use;                     ///< its next use
  int32_t before;                  ///< the operator before which it is made again: `use`, or an earlier one
  std::vector<int32_t> operators;  ///< operators that make it: its producer and those that wrote it since, in order
};

/// Returns the replay that fills the gap of `slot` before its use at `use`. It is valid when all operators that wrote
/// the slot are replayable and wrote nothing else that was alive before. They must also have read only slots that are
/// alive and unchanged until then. `operators` is empty when the replay is not valid.
Replay replay_before(const StepTrace& trace, int32_t slot, int32_t use);

/// True when `replay` can stand beside `others`: none discards a slot that another one reads while it is absent.
bool compatible(const StepTrace& trace, const Replay& replay, std::span<const Replay> others);

/// A trace in which the replays are operators of their own. The discarded slot ends, and a new one, with the later
/// uses, is born by an operator in front of the use.
struct ReplayedTrace {
  StepTrace trace;
  std::vector<int32_t> original_operator;  ///< by operator; -1 for a replay
  std::vector<int32_t> original_slot;      ///< by slot
};
ReplayedTrace with_replays(const StepTrace& trace, std::span<const Replay> replays);

}  // namespace spillway::swap
