/// One of the schedules that are weighed against each other: what it chooses, and what comes of that on paper.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "swap/schedule/replay_plan.h"
#include "swap/schedule/schedule_inputs.h"
#include "swap/schedule/simulation.h"

namespace spillway {

/// A slot and one of its uses, after which it leaves; both of the original trace.
using Departure = std::pair<int32_t, int32_t>;

/// What distinguishes one candidate from another.
struct Choices {
  std::vector<Replay> replays;
  std::map<int32_t, EvictionBias> bias;  ///< by slot of the original trace
  std::vector<bool> early;               ///< by slot of the original trace: comes back as soon as there is room
  std::set<Departure> sent;     ///< leave at once, not only when their room is needed, so that others can come back
  bool fetch_streamed = false;  ///< what is only streamed comes back too
  bool in_order = false;        ///< what is needed first gets room first to come back ahead
};

/// Slots and operators are those of the replayed trace.
struct Candidate {
  Choices choices;
  ReplayedTrace replayed;
  Actions actions;
  std::vector<Leave> leaves;
  Absences on_disk;
  Simulated outcome;  ///< not feasible: nothing but the choices counts
};

/// Furthest-next-use eviction as the choices bend it, page-outs after last writes, page-ins placed backwards from their
/// deadlines, and a simulation of that. Cost: two simulations.
Candidate evaluate(const StepTrace& trace, const ScheduleInputs& inputs, Choices choices);

}  // namespace spillway
