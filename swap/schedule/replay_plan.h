/// Running a cheap producer again instead of copying what it made.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "swap/schedule/step_trace.h"

namespace spillway {

/// A slot that is discarded without a copy after one use, and made again before the next.
struct Replay {
  int32_t slot;
  int32_t discard_after;           ///< its last use before the gap
  int32_t use;                     ///< its next use
  int32_t before;                  ///< the operator before which it is made again: `use`, or an earlier one
  std::vector<int32_t> operators;  ///< what makes it: its producer and those that wrote it since, in order
};

/// The replay that fills the gap of `slot` before its use at `use`. Valid when all that wrote the slot is replayable,
/// wrote nothing else that was alive before, and read only what is alive and unchanged until then. `operators` is empty
/// when it is not.
Replay replay_before(const StepTrace& trace, int32_t slot, int32_t use);

/// Whether `replay` can stand beside `others`: none discards what another one reads while it is away.
bool compatible(const StepTrace& trace, const Replay& replay, std::span<const Replay> others);

/// A trace in which the replays are operators of their own: the discarded slot ends, and a new one, with the later
/// uses, is born by an operator in front of the use.
struct ReplayedTrace {
  StepTrace trace;
  std::vector<int32_t> original_operator;  ///< by operator; -1 for a replay
  std::vector<int32_t> original_slot;      ///< by slot
};
ReplayedTrace with_replays(const StepTrace& trace, std::span<const Replay> replays);

}  // namespace spillway
