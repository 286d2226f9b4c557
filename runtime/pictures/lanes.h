/// The lanes of the recorded step: a picture of its events over time, one row per lane.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/trace_events.h"
#include "runtime/pictures/axis.h"

namespace spillway::report {

/// A stretch of time on a row of a picture.
struct Stretch {
  double begin, end;  ///< seconds
};

/// Consecutive stretches of a row that are drawn as one block.
struct Block {
  double left, right;     ///< picture units
  size_t first, longest;  ///< numbers of stretches
  size_t count = 1;
};

/// Returns the blocks of stretches that begin one after the other. Those too short to be seen are merged with their
/// neighbors. Blocks begin at least 1.5 picture units apart, however many stretches there are.
std::vector<Block> merge_blocks(const std::vector<Stretch>& stretches, const Axis& time);

/// True where a block is many short stretches, none of which fills half of it.
bool is_run(const Block& block, const std::vector<Stretch>& stretches, const Axis& time);

/// Returns the rows of the picture from the top: compute, copy out, copy in, communication, then others as they appear.
std::vector<std::string> lanes_of(const std::vector<TraceEvent>& events);

/// Returns the height of the rows of draw_lanes() in picture units.
double lanes_height(size_t lanes);

/// Draws a row per lane, from `grid`.top down, with the lane's busy time and bytes on the right. Events are merged as
/// merge_blocks() does.
std::string draw_lanes(const std::vector<TraceEvent>& events, const Grid& grid, const Axis& time);

}  // namespace spillway::report
