/// Autocast: fewer digits in the operators that tolerate it.
#pragma once
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "runtime/passes/tensor_format.h"

namespace spillway::runtime {

/// A scope in which operators on one kind of device compute in bfloat16 (`bf16`) or float16 (`fp16`). LibTorch's
/// autocast decides which operators do so; with `off` none does. Gradients of float16 need a LossScaler. Weights that
/// were cast are kept until the outermost scope ends. Backward does not need the scope: gradients have the types of
/// forward, and gradients of weights have the weights' own types. Scopes nest, and the innermost one applies. Thread:
/// the one that made the scope.
class Autocast {
 public:
  explicit Autocast(Amp amp, c10::DeviceType device = c10::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType former_type_;
};

}  // namespace spillway::runtime
