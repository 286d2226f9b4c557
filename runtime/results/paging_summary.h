/// What was paged in a kind of step, when and why, in terms of its operators.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/category.h"

namespace spillway {

struct Schedule;
struct StepTrace;

/// One tensor's planned stay away from the device.
struct PlannedAbsence {
  std::string maker;   ///< the operator that made it; empty: it is older than the step
  std::string after;   ///< its last use before it goes
  std::string before;  ///< the use that it is back for
  Category category = Category::other;
  int64_t bytes = 0;
  double seconds = 0;     ///< from one use to the other
  bool replayed = false;  ///< made again instead of copied
};

/// What one operator needs on the device at once.
struct Footprint {
  std::string name;
  int64_t argument_bytes = 0;
  int64_t own_bytes = 0;  ///< outputs and scratch
  int64_t bytes() const { return argument_bytes + own_bytes; }
};

struct PagingSummary {
  std::string kind;
  std::vector<PlannedAbsence> absences;  ///< the largest first
  std::vector<Footprint> footprints;     ///< the largest of each operator's name, the largest first
  double compute_seconds = 0;            ///< typically
  double shortest_compute_seconds = 0;   ///< with each operator at its shortest
  double predicted_seconds = 0;
  double exposed_seconds = 0;
  double bound_seconds = 0;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
};

PagingSummary summarise_paging(const StepTrace& trace, const Schedule& schedule);

}  // namespace spillway
