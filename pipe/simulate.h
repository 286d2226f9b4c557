/// The simulation of a step: when each item runs, and how long its ranks are idle.
#pragma once
#include <vector>

#include "pipe/costs.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// An item and the seconds from the step's start at which it begins and ends.
struct Span {
  Item item;
  double begin = 0, end = 0;
};

struct SimulatedStep {
  double seconds = 0;                         ///< from the first item's start to the last one's end
  std::vector<std::vector<Span>> spans = {};  ///< by rank, in order
  std::vector<double> busy = {};              ///< seconds of work, by rank
  std::vector<int> in_flight = {};            ///< most micro-batches between a forward and its backward, by rank
  /// Returns the bubble of a rank: the seconds in which it has nothing to do.
  double bubble(int rank) const { return seconds - busy[rank]; }
  /// Returns the work of all ranks as a share of their time.
  double utilization() const;
};

/// Simulates a program that check() takes. Each item starts when its rank is free and the results that it reads have
/// come.
SimulatedStep simulate(const StepProgram& program, const Costs& costs);

}  // namespace spillway::pipe
