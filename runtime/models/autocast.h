/// Fewer digits where they do not matter.
#pragma once
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string_view>

namespace spillway {

/// While it lives, operators on one kind of device whose results bear it compute in bfloat16 or float16, as LibTorch's
/// autocast decides (`bf16`, `fp16`), or none does (`off`). Gradients of float16 want a LossScaler. Weights that were
/// cast are kept until the outermost scope ends. Backward does not need it: gradients come in the types of forward,
/// those of weights in the weights' own. Scopes nest, the innermost wins. Thread: the one it was made on.
class Autocast {
 public:
  /// `amp` is `off`, `bf16` or `fp16`. Throws BadRequest naming these.
  explicit Autocast(std::string_view amp, c10::DeviceType device = c10::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType former_type_;
};

/// Throws BadRequest unless `amp` is `off`, `bf16` or `fp16`.
void check_amp(std::string_view amp);

}  // namespace spillway
