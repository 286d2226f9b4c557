/// A step of a pipeline: a lane a rank, measured above planned.
#pragma once
#include <string>
#include <vector>

#include "core/trace_events.h"
#include "runtime/results/pipeline_summary.h"

namespace spillway::report {

/// Draws the recorded step of a pipeline: HTML with a heading, in which `which` names the step. Each rank has two rows,
/// in one unit of time. Blocks have the color of their kind, and short ones are merged as merge_blocks() does, so the
/// size is bounded. Empty when no step was recorded. Of many ranks the first ones are drawn.
std::string draw_pipeline(const PipelineSummary& pipeline, const std::string& which);

/// Returns the recorded step's work as events, with a lane for what a rank did and one for what was planned. Times are
/// since the recorded step began.
std::vector<TraceEvent> pipeline_events(const PipelineSummary& pipeline);

}  // namespace spillway::report
