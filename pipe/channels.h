/// The channels between the ranks of a pipeline, which carry its messages.
#pragma once
#include <vector>

#include "pipe/program.h"

namespace spillway::pipe {

/// The messages along one edge of one copy of the model in one direction, between stages on different ranks.
struct Channel {
  int from_stage = 0, to_stage = 0;
  bool is_gradient = false;  ///< gradients of activations, from a higher stage to a lower one; else activations
  int copy = 0;
  int from_rank = 0, to_rank = 0;
};

/// Returns `activations from stage 0 to stage 1`. Gradients of activations are `errors` there.
std::string describe(const Channel& channel);

/// Returns all channels of a program, in an order that follows from its graph alone.
std::vector<Channel> channels(const StepProgram& program);

/// Returns the least number of slots, each for one message, that each end of every channel needs so that the program
/// comes to its end. A rank sends an item's results before its next item. A message stays in its slot until the item
/// that reads it begins. The program may lack backwards. Throws BadRequest where no number is enough.
int slots_needed(const StepProgram& program);

}  // namespace spillway::pipe
