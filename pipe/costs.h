/// The seconds that the items of a step and its messages take.
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

/// Seconds of all that a program does.
struct Costs {
  std::vector<StageSeconds> stages;
  double update = 0;   ///< update of each rank
  double message = 0;  ///< from the end of an item to the start of one on another rank that reads its result
};

/// Returns costs of equal stages. Gradients of weights take `weight_share` of a backward.
Costs equal_stages(int stages, double forward, double backward, double weight_share = 0.5);

/// Returns the seconds of an item.
double seconds_of(const Item& item, const Costs& costs);

}  // namespace spillway::pipe
