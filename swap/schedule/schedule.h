/// The schedule of a step: the slots that should leave, when, and when they should come back. It is made from the trace
/// of the last step of the same kind.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/schedule/replay.h"
#include "swap/schedule/schedule_inputs.h"
#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

struct Schedule {
  Actions actions;
  std::vector<Replay> replays;
  Actions simulated_actions;     ///< actions, translated to with_replays(trace, replays)
  AbsenceSet simulated_on_disk;  ///< absences that the prediction takes to pass the disk, in that trace
  bool on_demand = false;        ///< no schedule fits the budget, so every step runs on demand
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  double predicted_seconds = 0;  ///< seconds of a step that follows this schedule
  double exposed_seconds = 0;    ///< part of predicted_seconds that waits for copies
  double message_seconds = 0;    ///< part of predicted_seconds that waits for messages
  double bound_seconds = 0;      ///< no schedule is faster
  /// The simulated peak of a run of such steps: of a step that follows this schedule, or of one on demand, as the first
  /// one is, where that is larger. 0: no step fits the budget.
  int64_t predicted_peak_bytes = 0;
  std::vector<int64_t> resident_bytes;  ///< predicted bytes while each operator runs
  std::vector<double> ends;             ///< predicted seconds from the step's beginning to each operator's end
  int64_t host_bytes = 0;               ///< predicted bytes that the host holds at once for pages that left

  bool empty() const { return actions.page_ins.empty() && replays.empty() && bytes_out == 0; }
};

/// Makes the best of several candidates by simulated time. Each is furthest-next-use eviction (Belady) over the trace
/// under the budget, cyclic over steps. A page-out starts after the last write before the eviction, because its copy
/// makes the later drop free. Page-ins are placed as late as hides them, or as early as the budget allows. Candidates
/// differ in the slots that are replayed instead of copied, and in the slots that are kept although another use is
/// nearer. They also differ in the slots that leave before their room is needed, so that others can come back earlier.
/// Local search from the plain candidate finds them. Uses that the budget cannot serve ahead of time are left to
/// demand. Cost: inputs.candidates simulations, and one of a step on demand.
Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& inputs);

/// Makes the schedule's prediction and bound anew, from other times of the trace's operators or other rates; its
/// actions stay. Cost: one simulation.
void predict_again(Schedule& schedule, const StepTrace& trace, const ScheduleInputs& inputs);

}  // namespace spillway::swap
