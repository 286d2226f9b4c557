/// The time and memory of a run's steps under a budget, by simulation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/planning/rank_steps.h"
#include "swap/schedule/schedule_inputs.h"

namespace spillway::runtime {

/// A kind of step under a budget. Times are those of a step of all ranks; each part of the time is the maximum over
/// ranks, so parts need not add up.
struct StepForecast {
  std::string kind;
  double share = 0;  ///< KindOfStep::share
  double seconds = 0;
  double compute_seconds = 0;
  double copy_seconds = 0;     ///< waits for copies
  double message_seconds = 0;  ///< blocking collectives, and waits for messages beside the operators
  double bound_seconds = 0;    ///< no schedule is faster
  int64_t peak_bytes = 0;      ///< maximum over ranks
  int64_t host_bytes = 0;      ///< host memory of pages that left; maximum over ranks
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
};

/// A run under a budget.
struct Forecast {
  bool feasible = true;  ///< false: some rank's floor is above the budget, or its steps found no schedule
  double seconds = 0;    ///< mean time of a training step, over the kinds by their shares
  int64_t peak_bytes = 0;
  int64_t host_bytes = 0;
  std::vector<StepForecast> kinds;
};

/// Simulates the steps of `ranks`, whose first one has every kind, under the budget and rates of `inputs`. Each rank
/// follows the schedule that its Session would make. Ranks meet in the collectives that all of them make: between two
/// of these the slowest rank's time counts. Cost: make_schedule() for each kind and rank.
Forecast forecast(const std::vector<RankSteps>& ranks, const swap::ScheduleInputs& inputs);

}  // namespace spillway::runtime
