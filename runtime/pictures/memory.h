/// Bytes by category over the recorded step: the picture and its legend.
#pragma once
#include <cstdint>
#include <string>

#include "core/bytes.h"
#include "runtime/pictures/axis.h"
#include "runtime/recording/session_report.h"

namespace spillway::report {

/// The levels that a step's memory is compared with.
struct MemoryLevels {
  int64_t budget_bytes = kUnlimitedBytes;
  int64_t unconstrained_bytes = 0;  ///< the peak without a budget; 0: unknown
};

/// Draws areas stacked by category, and the lines of the budget and the unconstrained peak, named on the right of
/// `grid`. A line far above the rest is named, not drawn. The samples are thinned to the picture's columns; each
/// column's highest is kept.
std::string draw_memory(const StepRecording& recording, const MemoryLevels& levels, const Grid& grid, const Axis& time);

/// Draws the legend in HTML: from the bottom up, a chip for each category that held anything, with its bytes at the
/// highest sample.
std::string draw_memory_legend(const StepRecording& recording);

/// Returns the sample with the most bytes; null when there is none.
const MemorySample* highest_sample(const StepRecording& recording);

}  // namespace spillway::report
