/// The purposes of tensors that autograd knows: weights, and the gradients that it keeps.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::swap {

/// True for a leaf that was marked to require a gradient, as parameters are. Cost: a call and two loads.
bool is_weight(const at::Tensor& tensor) noexcept;

/// The work of autograd on a leaf's gradient.
enum class GradientWork : uint8_t {
  none,
  kept,    ///< it is added to the leaf's `.grad`
  hooked,  ///< it is added, or a hook runs after that, such as DistributedDataParallel's that copies it into a bucket
};
/// Returns the work that this thread does now.
GradientWork gradient_work();

}  // namespace spillway::swap
