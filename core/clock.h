/// The clock of waits and of measured times.
#pragma once
#include <chrono>
#include <functional>

namespace spillway {

/// The clock that never goes back.
using Clock = std::chrono::steady_clock;
/// A moment on Clock.
using SteadyTime = Clock::time_point;

/// Returns the seconds from `start` until now.
inline double seconds_since(SteadyTime start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A clock: returns the seconds since some moment.
using Now = std::function<double()>;

/// Returns the clock of the time that passes, from now on.
inline Now steady_now() {
  return [start = Clock::now()] { return seconds_since(start); };
}

/// Adds the wall seconds between its construction and its destruction to a number.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_since(start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const SteadyTime start_ = Clock::now();
};

}  // namespace spillway
