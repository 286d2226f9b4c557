/// A clock for operators on a device that runs them asynchronously to the host.
#pragma once
#include <vector>

namespace spillway {

/// Marks operators in a device's compute queue. Used by one thread at a time.
class ComputeClock {
 public:
  struct Times {
    double seconds = 0;      ///< seconds that the operator itself took
    double gap_seconds = 0;  ///< seconds between the previous operator and this one, without waits for copies
  };
  virtual ~ComputeClock() = default;
  /// Marks the beginning of the next operator: work submitted from now on belongs to it.
  virtual void begin() = 0;
  /// Marks the end of the operator: work submitted until now belongs to it.
  virtual void end() = 0;
  /// Leaves out the work that is submitted until resume(): it counts neither for an operator nor for the gap between
  /// two. Such work is the replay of operators. Calls nest.
  virtual void pause() = 0;
  virtual void resume() = 0;
  /// Returns the times of the operators since the last call, in order. Waits for the device.
  virtual std::vector<Times> take() = 0;
  /// Forgets the operators since the last call, and waits for nothing.
  virtual void forget() = 0;
  /// True when marks cost nothing, so that every step may be timed.
  virtual bool is_free() const { return false; }
};

}  // namespace spillway
