/// Extras: the work that fills the bubbles of a pipeline.
///
/// A *bubble* is a time in which a rank has no item to run. An *extra* is work of one rank that is not urgent, such as
/// the statistics and decompositions of a second-order method. It consists of equal *pieces*, and other items may come
/// between two of them.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "pipe/program.h"

namespace spillway::pipe {

/// Work of one rank that is done once in each cycle of steps.
struct Extra {
  int rank = 0;
  double seconds = 0;  ///< seconds of all pieces
  int pieces = 1;
  Item ready = {};              ///< it may begin when this item of its rank ends
  int taken_step = 0;           ///< the step of that item, in the cycle
  std::vector<int> after = {};  ///< the extras, of any rank, that must be done before it
  /// It is done before the rank's update in this step; from the cycle's length on: in the next cycle. −1: in any step.
  int serves_step = -1;
  int64_t held_bytes = 0;  ///< memory that is held from when it may begin until it is done
};

/// An item of the program, or a piece of an extra.
struct FilledItem {
  Item item = {};  ///< the program's item, where `extra` is −1
  int extra = -1, piece = 0;
  int age = 0;                ///< cycles since the extra's taken_step
  double begin = 0, end = 0;  ///< seconds from the cycle's start
};

struct FillOptions {
  /// Steps of a cycle; 0: as many as extras that are all ready in step 0 need, none of which has a deadline.
  int steps = 1;
  /// Share of a piece's seconds that must be free after it, against late items.
  double margin = 0.05;
  /// Most bytes that the extras of a rank hold. Where the next item would exceed that, they are done before it.
  int64_t held_bytes_limit = std::numeric_limits<int64_t>::max();
};

}  // namespace spillway::pipe
