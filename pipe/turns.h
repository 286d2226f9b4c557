/// The table of turns: which layers are refreshed in which step.
///
/// A rolling refresh takes the statistics of some layers in each step, in turn, so that every step has work for its
/// waits, and only some layers' inputs are held at once. The table follows from costs by shape, the interval and the
/// staleness alone. So what a step computes with depends on no measured time.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "pipe/fill.h"

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

/// Makes the extras of a refresh in which layers have these turns.
using RefreshOf = std::function<std::vector<Extra>(const std::vector<Turn>&)>;

/// Returns the least interval, at most `most`, whose refresh makes no cycle longer than by `tolerance` of itself;
/// `most` where there is none. Cost: a fill for each interval. Throws as fill() does, and BadRequest unless `most` is
/// at least 1 and the staleness.
int least_interval(const Program& program, std::span<const double> layer_costs, int staleness, int most,
                   const RefreshOf& refresh_of, const Costs& costs, const FillOptions& options,
                   double tolerance = 0.001);

}  // namespace spillway::pipe
