/// How long operators take on a device that runs them behind the host's back.
#pragma once
#include <vector>

namespace spillway {

/// Marks operators in a device's compute queue. Used by one thread at a time.
class ComputeClock {
 public:
  struct Times {
    double seconds = 0;      ///< of the operator itself
    double gap_seconds = 0;  ///< between the operator before and this one, without waits for copies
  };
  virtual ~ComputeClock() = default;
  /// The next operator begins with what is submitted from now on …
  virtual void begin() = 0;
  /// … and ends with what was submitted until now.
  virtual void end() = 0;
  /// What is submitted between these two is no operator's time, nor between any (operators that are run again). Nests.
  virtual void pause() = 0;
  virtual void resume() = 0;
  /// Of the operators since the last call, in order. Waits for the device.
  virtual std::vector<Times> take() = 0;
};

}  // namespace spillway
