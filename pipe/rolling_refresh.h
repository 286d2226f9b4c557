/// The rolling refresh: which layers are refreshed in which step.
///
/// It takes the statistics of some layers in each step. So every step has extras for its bubbles, and only some layers'
/// inputs are held at once. The choice follows from costs by shape, the interval and the staleness alone. So
/// the results of a step depend on no measured time.
#pragma once
#include <span>
#include <vector>

namespace spillway::pipe {

/// The steps of a layer's refresh, in a cycle of steps.
struct LayerRefresh {
  int taken_step = 0;   ///< its statistics are those of this step
  int serves_step = 0;  ///< the first step whose update uses them; from the cycle's length on: in the next cycle
};

/// Returns the refresh of each layer in a cycle of `interval` steps: the most expensive layers first, each in the step
/// with the least cost so far. Layers of one cost are taken in their order. Statistics serve `staleness` steps later.
/// Throws BadRequest unless interval ≥ 1 and 0 ≤ staleness ≤ interval.
std::vector<LayerRefresh> rolling_refresh(std::span<const double> layer_costs, int interval, int staleness);

}  // namespace spillway::pipe
