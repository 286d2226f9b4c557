/// Bytes by category over the recorded step: the picture and its legend.
#pragma once
#include <string>

#include "runtime/report/axis.h"
#include "runtime/results/train_result.h"

namespace spillway::report {

/// Draws areas stacked by category, and the lines of the budget and the unconstrained peak, named on the right of
/// `grid`. A line far above the rest is named, not drawn. The samples are thinned to the picture's columns; each
/// column's highest is kept.
std::string draw_memory(const TrainResult& result, const Grid& grid, const Axis& time);

/// Draws the legend in HTML: from the bottom up, a chip for each category that held anything, with its bytes at the
/// highest sample.
std::string draw_memory_legend(const StepRecording& recording);

/// Returns the sample with the most bytes; null when there is none.
const MemorySample* highest_sample(const StepRecording& recording);

}  // namespace spillway::report
