/// A recording of one step of a Session.
#pragma once
#include <cstdint>
#include <vector>

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

}  // namespace spillway
