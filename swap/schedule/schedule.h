/// What should leave, when, and when it should come back: made from the trace of the last step of the same kind.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/schedule/replay_plan.h"
#include "swap/schedule/schedule_inputs.h"
#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

struct Schedule {
  Actions actions;
  std::vector<Replay> replays;
  Actions simulated_actions;   ///< the same actions on with_replays(trace, replays)
  Absences simulated_on_disk;  ///< what the prediction takes to pass the disk, of the same trace
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  double predicted_seconds = 0;  ///< of a step that follows this schedule
  double exposed_seconds = 0;    ///< of them, waits for copies
  double bound_seconds = 0;      ///< no schedule is faster
  /// Of a run of such steps, the first one on demand included: what is alive, up to the budget.
  int64_t predicted_peak_bytes = 0;
  std::vector<int64_t> held;  ///< predicted bytes while each operator runs

  bool empty() const { return actions.page_ins.empty() && replays.empty() && bytes_out == 0; }
};

/// The best of several candidates by simulated time. Each is furthest-next-use eviction (Belady) over the trace under
/// the budget, cyclic over steps; a page-out starts after the last write before the eviction, since its copy makes the
/// later drop free; page-ins are placed as late as hides them, or as early as the budget allows. Candidates differ in
/// what is replayed instead of copied, in what is kept although another use is nearer, and in what leaves before its
/// room is needed, so that others can come back earlier; they are found by local search from the plain one. Uses that
/// the budget cannot serve ahead of time are left to demand. Cost: inputs.candidates simulations.
Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& inputs);

/// The schedule's prediction and bound anew, from other times of the trace's operators or other rates; what it does
/// stays. Cost: one simulation.
void predict_again(Schedule& schedule, const StepTrace& trace, const ScheduleInputs& inputs);

}  // namespace spillway
