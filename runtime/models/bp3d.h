/// The encoder–decoder for seismic volumes: every voxel gets a class.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct Bp3dOptions {
  int64_t in_channels = 1;  ///< seismic attributes; ≥ 1
  int64_t classes = 3;      ///< ≥ 2
  int64_t filters = 128;    ///< channels of every level; ≥ 1. Memory grows linearly, weights with its square

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The network: two levels down (conv 3³ → ReLU → max pool 2³), two levels up (conv 3³ → ReLU → nearest ×2), conv 1³ to
/// scores. It has 1 331 459 parameters with the default options.
class Bp3dImpl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit Bp3dImpl(const Bp3dOptions& options = {});

  /// Maps [B, in_channels, D, H, W] to raw scores [B, classes, D, H, W].
  /// Throws c10::Error when the channels differ or D, H or W is not a positive multiple of 4.
  at::Tensor forward(at::Tensor x);
  /// Returns a part for each convolution.
  std::vector<Part> parts() const;

  const Bp3dOptions& options() const noexcept { return options_; }

 private:
  Bp3dOptions options_;
  torch::nn::Conv3d down1_, down2_, up1_, up2_, head_;
};
TORCH_MODULE(Bp3d);

}  // namespace spillway::runtime
