/// The record of timed events on lanes, for reports and chrome://tracing.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace spillway {

/// One stretch of work in a lane.
struct TraceEvent {
  std::string name;
  std::string lane;      ///< "compute", "copy out", "copy in", "communication", …
  double start_seconds;  ///< seconds since the collector was made
  double seconds;
  int64_t bytes;  ///< bytes moved or touched; 0 where bytes make no sense
};

/// Writes events in the Chrome/Perfetto trace format: one process, one thread per lane. Bytes of names that are not
/// UTF-8 are replaced.
void write_chrome_json(std::ostream& out, const std::vector<TraceEvent>& events);

/// Collects events from any thread, up to a limit. Later events are counted, not kept.
class TraceEvents {
 public:
  explicit TraceEvents(size_t limit = 400'000) : limit_(limit) {}
  void add(std::string name, std::string lane, SteadyTime start, SteadyTime end, int64_t bytes = 0);
  std::vector<TraceEvent> events() const;
  size_t dropped() const;
  /// Writes the collected events as the free function write_chrome_json() does.
  void write_chrome_json(std::ostream& out) const;

 private:
  const size_t limit_;
  const SteadyTime start_ = Clock::now();
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  size_t dropped_ = 0;
};

}  // namespace spillway
