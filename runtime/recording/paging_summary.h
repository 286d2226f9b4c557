/// The paging of a kind of step: the tensors, times and reasons, in terms of its operators.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/category.h"

namespace spillway {

/// One tensor's planned absence from the device.
struct PlannedAbsence {
  std::string maker;   ///< operator that made it; empty: it is older than the step
  std::string after;   ///< its last use before it leaves the device
  std::string before;  ///< the use that it is resident again for
  Category category = Category::other;
  int64_t bytes = 0;
  double seconds = 0;     ///< time from one use to the other
  bool replayed = false;  ///< made again by a replay instead of copied
};

/// The bytes that one operator needs on the device at once.
struct Footprint {
  std::string name;
  int64_t argument_bytes = 0;
  int64_t output_bytes = 0;
  int64_t scratch_bytes = 0;  ///< workspace and windows, at the instant when it holds most beside its outputs
  int64_t bytes() const { return argument_bytes + output_bytes + scratch_bytes; }
};

/// The paging of the most frequent kind of step, as its schedule plans it.
struct PagingSummary {
  std::string kind;
  std::vector<PlannedAbsence> absences;  ///< largest first
  std::vector<Footprint> footprints;     ///< the largest one of each operator's name; largest first
  double compute_seconds = 0;            ///< typical time
  double shortest_compute_seconds = 0;   ///< time with each operator at its shortest
  bool on_demand = false;                ///< no schedule fits the budget
  double predicted_seconds = 0;          ///< 0: not even a step on demand fits
  double exposed_seconds = 0;
  double bound_seconds = 0;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
};

}  // namespace spillway
