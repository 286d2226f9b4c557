/// Times of kernels from the rates of a device.
#pragma once
#include <utility>

#include "runtime/planning/device_rates.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {

/// Returns the floating-point operations of a matrix product, a convolution, its backward or an attention. Each
/// multiplication counts, and each addition. 0 for other operators.
double flops_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

/// Times by the roofline model (Williams et al., 2009): an operator takes as long as its operations or its bytes take,
/// whichever is longer. Results count as many bytes as the largest argument. Convolutions of few channels are slower.
/// Eigendecompositions take the table's time.
class RooflineTimes final : public swap::KernelTimes {
 public:
  explicit RooflineTimes(DeviceRates rates, bool on_gpu = false) : rates_(std::move(rates)), on_gpu_(on_gpu) {}
  double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) override;
  double gap_seconds(const c10::OperatorHandle& op) const override;
  bool on_gpu() const override { return on_gpu_; }

 private:
  const DeviceRates rates_;
  const bool on_gpu_;
};

}  // namespace spillway::runtime
