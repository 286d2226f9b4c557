/// The replay of a program on paper: when each item runs, and how long ranks wait.
#pragma once
#include <vector>

#include "pipe/program.h"

namespace spillway::pipe {

/// Seconds of a stage's items, for one micro-batch.
struct StageSeconds {
  double forward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
  double backward() const { return input_gradient + weight_gradient; }
};

/// Seconds of everything in a program.
struct Costs {
  std::vector<StageSeconds> stages;
  double update = 0;   ///< each rank's
  double message = 0;  ///< from the end of an item to the start of one on another rank that reads its result
};

/// Returns costs of equal stages.
Costs equal_stages(int stages, double forward, double backward, double weight_share = 0.5);

/// Returns the seconds of an item.
double seconds_of(const Item& item, const Costs& costs);

struct Span {
  Item item;
  double begin = 0, end = 0;
};

struct Replayed {
  double seconds = 0;                         ///< from the first item's start to the last one's end
  std::vector<std::vector<Span>> spans = {};  ///< by rank, in order
  std::vector<double> busy = {};              ///< seconds of work, by rank
  std::vector<int> in_flight = {};            ///< most micro-batches between a forward and its backward, by rank
  /// Returns the seconds in which a rank waits.
  double bubble(int rank) const { return seconds - busy[rank]; }
  /// Returns the work of all ranks as a share of their time.
  double utilization() const;
};

/// Replays a program that check() takes: each item starts when its rank is free and what it needs has come.
Replayed replay(const StepProgram& program, const Costs& costs);

}  // namespace spillway::pipe
