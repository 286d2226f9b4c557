/// The position of a run: its steps and the cases that it drew.
#pragma once
#include <cstdint>

namespace spillway::runtime {

/// The position of a saved run.
struct RunPosition {
  int64_t step = 0;  ///< steps done since the very first
  /// Training cases that all ranks drew in these steps together, whatever the number of ranks.
  int64_t cases_drawn = 0;
  int64_t ranks = 0;  ///< ranks of the run that saved it; 0: unknown
};

}  // namespace spillway::runtime
