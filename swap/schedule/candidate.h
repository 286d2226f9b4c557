/// One of the schedules that are weighed against each other: its choices, and their simulated outcome.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "swap/schedule/replay.h"
#include "swap/schedule/schedule_inputs.h"
#include "swap/schedule/simulation.h"

namespace spillway::swap {

/// A slot and one of its uses, after which the slot leaves; both are of the original trace.
using EvictionPoint = std::pair<int32_t, int32_t>;

/// The choices that distinguish one candidate from another.
struct Choices {
  std::vector<Replay> replays;
  std::map<int32_t, EvictionBias> bias;  ///< by slot of the original trace
  std::vector<bool> prefetch_early;      ///< by slot of the original trace: comes back as soon as there is room
  std::set<EvictionPoint>
      evict_after_use;          ///< slots leave here at once, not only when their room is needed: others can come back
  bool fetch_streamed = false;  ///< slots that are only streamed come back too
  bool prefetch_in_use_order = false;  ///< slots that are needed first get room first to come back ahead
};

/// A schedule with its simulated outcome. Slots and operators are those of the replayed trace.
struct Candidate {
  Choices choices;
  ReplayedTrace replayed;
  Actions actions;
  std::vector<Eviction> evictions;
  AbsenceSet on_disk;
  Simulated outcome;  ///< not feasible: only the choices count
};

/// Evaluates choices: furthest-next-use eviction as the choices change it, page-outs after last writes, page-ins placed
/// backwards from their deadlines, and a simulation of that. Cost: two simulations.
Candidate evaluate(const StepTrace& trace, const ScheduleInputs& inputs, Choices choices);

}  // namespace spillway::swap
