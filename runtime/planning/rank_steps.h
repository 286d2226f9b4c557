/// The steps of one rank, as a plan sees them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "swap/schedule/step_trace.h"

namespace spillway::runtime {

/// A kind of step.
struct KindOfStep {
  double share = 0;  ///< share of a long run's training steps; 0 for validation
  swap::StepTrace trace;
};

/// One rank's kinds of step without a budget, and their needs.
struct RankSteps {
  int rank = 0;
  std::vector<KindOfStep> kinds = {};
  int64_t peak_bytes = 0;   ///< without a budget
  int64_t floor_bytes = 0;  ///< the smallest feasible budget
  std::string floor_operator = {};
};

}  // namespace spillway::runtime
