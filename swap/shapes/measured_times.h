/// Times of kernels and copies as this machine takes them.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <vector>

#include "swap/shapes/shape_kernels.h"

namespace spillway::swap {

/// The time that the host takes before each operator: autograd, the program, the gate.
struct HostGaps {
  double forward = 5e-6;   ///< seconds before an operator, but in backward passes
  double backward = 5e-6;  ///< seconds before an operator in backward passes
};

/// True while this thread runs a backward pass.
bool in_backward();

/// Measures each call that a dry run makes once: the same operator on arguments of the same shapes. Arguments of more
/// than `max_bytes` are measured in part: spatial dimensions, or the rows of a matrix, are halved until they are small
/// enough, and the time grows with the bytes. So a table of one volume serves larger ones. Used by one thread at a
/// time.
class MeasuredTimes final : public KernelTimes {
 public:
  explicit MeasuredTimes(int64_t max_bytes = int64_t{128} << 20) : max_bytes_(max_bytes) {}

  /// Returns the time of the call; 0, and notes the call, where it was not measured yet.
  double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) override;
  double gap_seconds(const c10::OperatorHandle&) const override {
    return in_backward() ? gaps_.backward : gaps_.forward;
  }
  void set_gaps(const HostGaps& gaps) { gaps_ = gaps; }
  const HostGaps& gaps() const { return gaps_; }
  /// Returns the times that are known, by a text that describes the call.
  const std::map<std::string, double>& known() const { return seconds_; }
  /// Adds times that known() of another object had on the same machine.
  void add(const std::map<std::string, double>& known) { seconds_.insert(known.begin(), known.end()); }
  /// Returns the number of calls that are noted.
  int64_t missing() const { return std::ssize(noted_); }
  /// Measures the noted calls: each runs for 10 ms, three times at least. Leaves the default generator as it was. No
  /// Session may be open on this thread. A part that its operator refuses is replaced by the larger one that it is a
  /// half of. Throws what an operator throws for the whole call.
  void measure();

 private:
  struct Call {
    c10::OperatorHandle op;
    /// The whole call's arguments, halves of them, halves of these, and so on. Tensors have no bytes.
    std::vector<std::vector<c10::IValue>> halves;
  };
  const int64_t max_bytes_;
  HostGaps gaps_;
  std::map<std::string, double> seconds_;
  std::map<std::string, Call> noted_;
};

/// Measures how many bytes a second one thread copies between large buffers while the other threads multiply matrices.
/// Takes 0.2 s.
double measure_copy_rate();

}  // namespace spillway::swap
