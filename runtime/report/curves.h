/// Loss and metric by step, the run beside its comparisons.
#pragma once
#include <string>
#include <vector>

#include "runtime/results/train_result.h"

namespace spillway::report {

/// Draws the mean loss of every step: SVG with a heading. Empty when no run has a step.
std::string draw_losses(const TrainResult& result, const std::vector<NamedResult>& others);

/// Draws the metric on the held-out cases. Empty when no run measured it.
std::string draw_metric(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::report
