/// The times of operators from marks on a device's stream, whatever the events of the device are. CUDA-free.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/compute_clock.h"

namespace spillway {

/// A mark on a stream: an operator begins or ends `at` an event, or compute stood still from `at` until `until`.
template <class Event>
struct ComputeMark {
  enum class Kind : uint8_t { begin, end, stall };
  Kind kind;
  Event at;
  Event until = {};
};

/// Returns the seconds between two events of a stream, at least 0. `elapsed` returns nothing while one of them is not
/// done, and `wait` then waits for both. Where several threads mark one stream, a mark that was recorded earlier may
/// come later into the list, so that waiting for the last mark is not waiting for all.
template <class Elapsed, class Wait>
double seconds_when_done(Elapsed&& elapsed, Wait&& wait) {
  auto seconds = elapsed();
  if (!seconds) {
    wait();
    seconds = elapsed();
  }
  return std::max(0.0, seconds.value());
}

/// Returns the times of the operators whose begin and end are among the marks, in their order, without the stalls in
/// them. `seconds_between(from, to)` returns the seconds between two events.
template <class Event, class Seconds>
std::vector<ComputeClock::Times> times_of(const std::vector<ComputeMark<Event>>& marks, Seconds&& seconds_between) {
  using Kind = typename ComputeMark<Event>::Kind;
  std::vector<ComputeClock::Times> times;
  Event begun = {}, ended = {};
  bool has_begun = false, has_ended = false;
  double stalled = 0;  // seconds of stalls since the last begin or end
  double gap = 0;
  for (const ComputeMark<Event>& mark : marks) {
    if (mark.kind == Kind::stall) {
      stalled += seconds_between(mark.at, mark.until);
      continue;
    }
    if (mark.kind == Kind::begin) {
      gap = has_ended ? std::max(0.0, seconds_between(ended, mark.at) - stalled) : 0;
      begun = mark.at;
      has_begun = true;
    } else if (has_begun) {
      times.push_back({std::max(0.0, seconds_between(begun, mark.at) - stalled), gap});
      ended = mark.at;
      has_ended = true;
      has_begun = false;
    }
    stalled = 0;
  }
  return times;
}

}  // namespace spillway
