/// Keeps small gradients above float16's smallest number.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/options/loss_scaling.h"

namespace spillway {

/// Dynamic loss scaling: backward starts from scale·loss; gradients are divided by the scale before they are used. A
/// step whose gradients overflowed is left out and the scale halved; after growth_interval steps without one it
/// doubles. Source: Micikevicius et al. 2018, Mixed Precision Training, §3.2.
class LossScaler {
 public:
  /// Its two numbers for the device are born here. Throws BadRequest.
  LossScaler(const LossScaling& scaling, c10::Device device);

  double scale() const { return scale_; }
  /// Steps left out so far.
  int64_t skipped() const { return skipped_; }

  /// Divides float32 `gradients` by the scale, in place, one at a time. Returns whether all are finite; where not, they
  /// are not to be used, and the scale has been halved. With several ranks the gradients are averages already, so that
  /// all decide alike. Cost: one pass over the gradients and one host synchronisation. Throws std::runtime_error where
  /// they are not finite even with a scale of 2⁻²⁴.
  [[nodiscard]] bool unscale(const std::vector<at::Tensor>& gradients);

  /// All of it as a float64 tensor [3], for a checkpoint, and back. Throws BadRequest for another tensor.
  at::Tensor pack() const;
  void unpack(const at::Tensor& packed);

 private:
  int64_t growth_interval_;
  double scale_;
  int64_t good_steps_ = 0;
  int64_t skipped_ = 0;
  at::Tensor overflowed_, inverse_;  ///< float32 [1]
};

}  // namespace spillway
