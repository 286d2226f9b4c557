/// The table of turns: which layers are refreshed in which step.
///
/// A rolling refresh takes the statistics of some layers in each step, in turn, so that every step has work for its
/// waits, and only some layers' inputs are held at once. The table follows from costs by shape, the interval and the
/// staleness alone. So what a step computes with depends on no measured time.
#pragma once
#include <span>
#include <vector>

namespace spillway::pipe {

/// When a layer is refreshed, in a cycle of steps.
struct Turn {
  int taken_step = 0;   ///< its statistics are those of this step
  int serves_step = 0;  ///< the first step whose update uses them; from the cycle's length on: in the next cycle
};

/// Returns each layer's turn in a cycle of `interval` steps: the most expensive layers first, each to the step with the
/// least cost so far. Layers of one cost are taken in their order. Statistics serve `staleness` steps later. Throws
/// BadRequest unless interval ≥ 1 and 0 ≤ staleness ≤ interval.
std::vector<Turn> turns(std::span<const double> costs, int interval, int staleness);

}  // namespace spillway::pipe
