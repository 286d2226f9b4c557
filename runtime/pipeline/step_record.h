/// One step of a pipeline as it was and as it was planned.
#pragma once
#include <cstdint>
#include <vector>

#include "core/clock.h"
#include "pipe/fill.h"
#include "runtime/pipeline/kfac_in_bubbles.h"
#include "runtime/pipeline/pipeline.h"
#include "runtime/results/pipeline_summary.h"

namespace spillway::runtime {

/// The moments of a step.
struct StepMoments {
  SteadyTime began{};     ///< before its passes
  SteadyTime passed{};    ///< after them
  SteadyTime averaged{};  ///< after gradients and losses were averaged
  SteadyTime updated{};   ///< after the optimizer
};

/// The times of a rank's steps around its passes.
struct StepTimes {
  StepMoments last = {};       ///< moments of the last step
  int64_t step = 0;            ///< number of that step in the run, from 0
  bool fills_bubbles = false;  ///< K-FAC's work was among that step's items
  int64_t steps = 0;           ///< whole steps so far
  double average_seconds = 0;  ///< seconds from `passed` to `averaged`, of all steps
  double update_seconds = 0;   ///< seconds from `averaged` to `updated`, of all steps

  /// Adds a whole step.
  void add(const StepMoments& moments);
};

/// Returns the work of this rank's last step, in seconds since `zero`. `passes` are the items and extras of its passes.
/// `in_bubbles` may be null where there are no extras.
std::vector<PipelineSpan> measured_spans(const std::vector<pipe::FilledItem>& passes, const StepTimes& times,
                                         const KfacInBubbles* in_bubbles, SteadyTime zero);

/// Returns each rank's planned work of the step of `times`, by place. It is what `in_bubbles` has planned where that
/// step was run so; else the simulated program with updates of `update` seconds. 0 is where the first rank begins.
std::vector<std::vector<PipelineSpan>> planned_spans(const PipelinePlan& plan, const StepTimes& times,
                                                     const KfacInBubbles* in_bubbles, double update);

/// The steps that a rank's refreshes take by a plan. Both ends count: the step of the statistics, and that of the last
/// piece.
struct RefreshSteps {
  double mean = 0;     ///< mean over the refreshes of a cycle
  int64_t oldest = 0;  ///< most steps from statistics until what is made of them serves
};

/// Returns the steps of the rank at a place. Zeros where it has no extras.
RefreshSteps refresh_steps(const pipe::Filled& filled, const std::vector<pipe::Extra>& extras, int place);

/// Moves ranks' spans to one 0, which is where the first of them begins, and returns that moment on the clock of rank
/// `own`. `zeros` are the ranks' own zeros on their clocks. Where they share a clock the zeros are apart by as much as
/// it says; else they count as the same moment.
double move_to_common_zero(std::vector<std::vector<PipelineSpan>>& spans, const std::vector<double>& zeros,
                           bool share_clock, int own);

}  // namespace spillway::runtime
