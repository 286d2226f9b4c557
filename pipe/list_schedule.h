/// Schedules for any graph of stages.
#pragma once
#include "pipe/program.h"
#include "pipe/replay.h"

namespace spillway::pipe {

/// Makes a program for a graph that no published schedule fits, such as a U-Net whose ranks have a level on the way
/// down and on the way up. Ranks take items as they become ready: backwards before forwards, then lower micro-batches,
/// then later stages. A stage takes its micro-batches in order. At most `in_flight` micro-batches are between a rank's
/// first forward and its last backward. With one copy of the model. Cost: O(items² / ranks). Throws BadRequest where a
/// number is not positive, the graph has not exactly one copy, or an edge does not lead to a higher stage of the graph.
Program list_schedule(const Graph& graph, int micro_batches, int in_flight, const Costs& costs);

/// Returns a graph of 2 · `ranks` stages, a chain down and up again: rank r has level r on both ways. An edge leads
/// from each level on the way down to the same one on the way up: a U-Net's skips, which leave no rank.
Graph levels_down_and_up(int ranks);

}  // namespace spillway::pipe
