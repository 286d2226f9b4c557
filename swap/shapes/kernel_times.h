/// Times of kernels, for dry runs.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace c10 {
class OperatorHandle;
}

namespace spillway::swap {

/// Tells how long kernels take that do not run.
class KernelTimes {
 public:
  virtual ~KernelTimes() = default;
  /// Returns the seconds of the operator's own kernel on these arguments, whose values are undefined.
  virtual double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) = 0;
  /// Returns the seconds that pass on the host between one operator and the next.
  virtual double gap_seconds() const = 0;
};

}  // namespace spillway::swap
