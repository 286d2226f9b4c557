/// Kernels that compute no values, with which a Session runs a step dry, and the times that they tell.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <utility>

namespace c10 {
class OperatorHandle;
}

namespace spillway::swap {

class OperatorKernels;

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

/// Makes kernels, for Sessions on the CPU, whose results have their sizes, strides and charged bytes, and whose values
/// are undefined. Nothing reads or writes a tensor's bytes, so even a model that fits no memory of this machine runs,
/// in milliseconds. The trace of a step has the operators, storages and bytes of a real one. Scratch inside kernels
/// follows rules (swap/shapes/shape_rules.h). A number that an operator reads from a tensor is 0, or true. Shapes are
/// LibTorch's own: those of its Meta kernels. An operator without one, and without a rule, throws BadRequest naming it.
/// With `times`, the trace has the times that these tell, and the scratch of their device; else the times are those of
/// the dry run.
std::shared_ptr<OperatorKernels> make_shape_kernels(std::shared_ptr<KernelTimes> times = nullptr);

}  // namespace spillway::swap
