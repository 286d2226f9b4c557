/// The choice of K-FAC's interval in a pipeline, by steps that are tried.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/interruption/train_requests.h"
#include "runtime/training/run_context.h"

namespace spillway::runtime {

/// Sets the interval of K-FAC's refreshes to the least one for which the ranks' bubbles have time. Intervals are tried
/// before the training, four at most, each in three cycles of steps that are forgotten. An interval has time when the
/// plan of the bubbles makes its cycle longer by no more than 1 %. Where none of them has, the one whose steps are
/// shortest is taken. `context` is one with PipelineOptions::choose_interval, and its own interval is tried first.
/// Returns the choice and its reason in one line, with the flags that give the same run without trying. Collective.
/// Throws what TrainingRun does, and Interrupted when a stop is requested meanwhile.
std::string choose_interval(RunContext& context, int64_t budget_bytes, double grad_worker_frac,
                            TrainRequests* requests);

/// The result of trying an interval.
struct TriedInterval {
  int64_t interval = 0;
  double step_seconds = 0;
  double excess = 0;  ///< share by which refreshes make a cycle longer
  double load = 0;    ///< seconds of refreshes as a share of the bubbles of a cycle, on the busiest rank
};

/// Returns the interval to try next, at most `most`; 0 when the least one that has time is among those tried, or there
/// is none. `tried` is not empty.
int64_t next_interval(const std::vector<TriedInterval>& tried, int64_t most);

/// Returns the one to take: the least interval that has time, else the one with the shortest steps.
const TriedInterval& best_interval(const std::vector<TriedInterval>& tried);

}  // namespace spillway::runtime
