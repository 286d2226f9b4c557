/// The report of a Session: a step that was recorded, how the steps are paged, and the figures of all of them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/category.h"
#include "core/clock.h"
#include "core/trace_events.h"

namespace spillway {

/// Bytes held at one instant.
struct MemorySample {
  double seconds;  ///< time since the recorded step began
  BytesByCategory bytes;
};

/// A recording of one step: memory over time, and the events on each lane. Times are seconds since the step began.
struct StepRecording {
  int64_t step = -1;
  double seconds = 0;
  SteadyTime began{};  ///< the moment in which it began
  std::vector<MemorySample> memory;
  std::vector<TraceEvent> events;
};

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

/// The figures of a Session, and one of its steps from inside.
struct SessionReport {
  std::string device;
  int64_t budget_bytes = kUnlimitedBytes;
  int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};
  int64_t floor_bytes = 0;  ///< bytes of the neediest operator
  std::string floor_operator;
  int64_t host_peak_bytes = 0;
  int64_t disk_peak_bytes = 0;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t replays = 0;
  double exposed_seconds = 0;
  std::map<std::string, std::vector<double>> seconds_by_kind;  ///< seconds of every step, in order
  std::string kind;                                            ///< the kind of the recorded step
  StepRecording recording;
  std::optional<PagingSummary> paging;  ///< the paging of that kind, where it was planned
};

}  // namespace spillway
