/// What ran when in the recorded step, one row per lane.
#pragma once
#include <string>
#include <vector>

#include "core/trace_events.h"
#include "runtime/report/axis.h"

namespace spillway::report {

/// The rows of the picture from the top: compute, copy out, copy in, communication, then a few others as they appear.
std::vector<std::string> lanes_of(const std::vector<TraceEvent>& events);

/// Height of the rows of draw_lanes in picture units.
double lanes_height(size_t lanes);

/// A row per lane, from `grid`.top down, with its busy time and bytes on the right. Events too short to be seen are
/// merged with their neighbours: blocks of a lane begin at least 1.5 picture units apart, however many events it has.
std::string draw_lanes(const std::vector<TraceEvent>& events, const Grid& grid, const Axis& time);

}  // namespace spillway::report
