/// Bytes by category over the recorded step: the picture and its legend.
#pragma once
#include <string>

#include "runtime/report/axis.h"
#include "runtime/results/train_result.h"

namespace spillway::report {

/// Areas stacked by category, the budget's line and the unconstrained peak's, named on the right of `grid`. A line far
/// above the rest is named, not drawn. Thins the samples to the picture's columns and keeps each column's highest.
std::string draw_memory(const TrainResult& result, const Grid& grid, const Axis& time);

/// HTML: from the ground up, a chip for each category that held anything, with its bytes at the highest sample.
std::string draw_memory_legend(const StepRecording& recording);

/// The sample with the most bytes; null when there is none.
const MemorySample* highest_sample(const StepRecording& recording);

}  // namespace spillway::report
