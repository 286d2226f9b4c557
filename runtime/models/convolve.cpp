#include "runtime/models/convolve.h"

#include <ATen/autocast_mode.h>

#include "runtime/passes/autocast.h"

namespace spillway::runtime {

at::Tensor convolve(torch::nn::Conv3d& conv, const at::Tensor& x) {
  constexpr int64_t kBrokenDepth = 2;
  if (x.size(2) != kBrokenDepth || !at::autocast::is_autocast_enabled(at::kCPU)) return conv->forward(x);
  Autocast off(Amp::off);
  return conv->forward(x.to(at::kFloat));
}

}  // namespace spillway::runtime
