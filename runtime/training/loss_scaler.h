/// Loss scaling, which keeps small gradients above float16's smallest number.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/options/train_options.h"

namespace spillway::runtime {

/// Dynamic loss scaling: backward starts from scale·loss, and gradients are divided by the scale before they are used.
/// A step whose gradients overflowed is left out and the scale halved. After growth_interval steps without an overflow
/// the scale doubles. Source: Micikevicius et al. 2018, Mixed Precision Training, §3.2.
class LossScaler {
 public:
  /// Makes the scaler and its two numbers on the device. Throws BadRequest.
  LossScaler(const LossScaling& scaling, c10::Device device);

  double scale() const { return scale_; }
  /// Returns the number of steps left out so far.
  int64_t skipped() const { return skipped_; }

  /// Divides float32 `gradients` by the scale, in place, one at a time. Returns true when all are finite. Otherwise
  /// they must not be used, and the scale has been halved. With several ranks the gradients are averages already, so
  /// that all ranks decide alike. Cost: one pass over the gradients and one host synchronization. Throws
  /// std::runtime_error where they are not finite even with a scale of 2⁻²⁴.
  [[nodiscard]] bool unscale(const std::vector<at::Tensor>& gradients);

  /// Packs the whole state into a float64 tensor [3] for a checkpoint; unpack() restores it. Throws BadRequest for
  /// another tensor.
  at::Tensor pack() const;
  void unpack(const at::Tensor& packed);

 private:
  int64_t growth_interval_;
  double scale_;
  int64_t good_steps_ = 0;
  int64_t skipped_ = 0;
  at::Tensor overflowed_, inverse_;  ///< float32 [1]
};

}  // namespace spillway::runtime
