/// How far a run has come.
#pragma once
#include <cstdint>

namespace spillway {

/// How far a saved run has come.
struct RunPosition {
  int64_t step = 0;  ///< steps done since the very first
  /// Training cases that all ranks drew in these steps together, whatever the number of ranks.
  int64_t cases_drawn = 0;
};

}  // namespace spillway
