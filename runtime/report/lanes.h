/// The lanes of the recorded step: a picture of its events over time, one row per lane.
#pragma once
#include <string>
#include <vector>

#include "core/trace_events.h"
#include "runtime/report/axis.h"

namespace spillway::report {

/// Returns the rows of the picture from the top: compute, copy out, copy in, communication, then others as they appear.
std::vector<std::string> lanes_of(const std::vector<TraceEvent>& events);

/// Returns the height of the rows of draw_lanes() in picture units.
double lanes_height(size_t lanes);

/// Draws a row per lane, from `grid`.top down, with the lane's busy time and bytes on the right. Events too short to be
/// seen are merged with their neighbors. Blocks of a lane begin at least 1.5 picture units apart, however many events
/// it has.
std::string draw_lanes(const std::vector<TraceEvent>& events, const Grid& grid, const Axis& time);

}  // namespace spillway::report
