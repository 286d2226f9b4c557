/// The lines of messages between the ranks of a pipeline.
#pragma once
#include <vector>

#include "pipe/program.h"

namespace spillway::pipe {

/// One direction of an edge of one copy of the model, between stages on different ranks.
struct Line {
  int from_stage = 0, to_stage = 0;
  bool is_error = false;  ///< errors, which go from the edge's higher stage to its lower one; else activations
  int copy = 0;
  int from_rank = 0, to_rank = 0;
};

/// Returns `activations from stage 0 to stage 1`.
std::string describe(const Line& line);

/// Returns all lines of a program, in an order that follows from its graph.
std::vector<Line> lines(const StepProgram& program);

/// Returns the least number of messages that each end of every line must keep, so that ranks which follow the program
/// never wait for each other for ever. A rank sends an item's results before its next item, and a message stays until
/// its reader's item begins. The program may lack backwards. Throws BadRequest where no number is enough.
int slots_needed(const StepProgram& program);

}  // namespace spillway::pipe
