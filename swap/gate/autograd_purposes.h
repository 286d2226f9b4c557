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

/// A scope in which this thread makes buckets of gradients, as DistributedDataParallel does. Only operators write what
/// is made in it, so it can leave the device at once; other new memory may be written through a pointer first.
class BucketScope {
 public:
  BucketScope() noexcept : outer_(is_open_) { is_open_ = true; }
  ~BucketScope() { is_open_ = outer_; }
  BucketScope(const BucketScope&) = delete;
  BucketScope& operator=(const BucketScope&) = delete;
  /// True inside a scope of this thread.
  static bool is_open() noexcept { return is_open_; }

 private:
  static thread_local bool is_open_;
  const bool outer_;
};

}  // namespace spillway::swap
