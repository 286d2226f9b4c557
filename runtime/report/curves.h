/// Loss and metric, the run beside its comparisons.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/results/train_result.h"

namespace spillway::report {

/// The horizontal axis of a picture. Seconds are those of the steps so far, without validation.
enum class Over : uint8_t { steps, seconds };

/// Draws the mean loss of every step: SVG with a heading. Empty when no run has a step.
std::string draw_losses(const TrainResult& result, const std::vector<NamedResult>& others, Over over = Over::steps);

/// Draws the metric on the held-out cases. Empty when no run measured it.
std::string draw_metric(const TrainResult& result, const std::vector<NamedResult>& others, Over over = Over::steps);

}  // namespace spillway::report
