/// A stopwatch for wall seconds.
#pragma once
#include "core/clock.h"

namespace spillway {

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
