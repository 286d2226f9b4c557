/// Times of kernels, for dry runs.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <utility>

namespace c10 {
class OperatorHandle;
}

namespace spillway::swap {

/// Tells how long kernels take that do not run, and which device's they are.
class KernelTimes {
 public:
  virtual ~KernelTimes() = default;
  /// Returns the seconds of the operator's own kernel on these arguments, whose values are undefined.
  virtual double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) = 0;
  /// Returns the seconds that the host takes before the operator's kernel begins. On a GPU earlier kernels hide them.
  virtual double gap_seconds(const c10::OperatorHandle& op) const = 0;
  /// True where they are a GPU's. A dry run then allocates the scratch of a GPU's kernels (swap/shapes/shape_rules.h).
  virtual bool on_gpu() const { return false; }
};

/// Adds up what other times tell. Used by one thread at a time.
class CountedTimes final : public KernelTimes {
 public:
  explicit CountedTimes(std::shared_ptr<KernelTimes> times) : times_(std::move(times)) {}
  double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) override {
    const double seconds = times_->seconds(op, arguments);
    sum_ += seconds + times_->gap_seconds(op);
    return seconds;
  }
  double gap_seconds(const c10::OperatorHandle& op) const override { return times_->gap_seconds(op); }
  bool on_gpu() const override { return times_->on_gpu(); }
  /// Returns the seconds of all kernels so far and of the gaps between them.
  double sum() const { return sum_; }

 private:
  const std::shared_ptr<KernelTimes> times_;
  double sum_ = 0;
};

}  // namespace spillway::swap
