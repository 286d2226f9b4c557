/// The 3-D U-Net of Isensee et al. 2017 for brain tumors: residual context levels down, localization levels up, deep
/// supervision.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct UNet3dOptions {
  int64_t in_channels = 4;  ///< modalities; ≥ 1
  int64_t classes = 3;      ///< overlapping sigmoid labels; ≥ 1
  int64_t filters = 16;     ///< channels of the top level, doubled at every level below; ≥ 1. Memory grows linearly
  int64_t depth = 5;        ///< resolution levels; 2 … 8. Edges must be divisible by 2^(depth-1)
  double dropout = 0.3;     ///< probability that a channel inside a context module is dropped; 0 ≤ p < 1
  bool recompute = false;   ///< drop the tensors inside each level and compute them again for backward

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
  /// Returns the number that each of D, H and W must be a multiple of: 16 at depth 5.
  int64_t edge_multiple() const { return int64_t{1} << (depth - 1); }
};

/// A block: convolution → affine instance norm → LeakyReLU(0.01), [B, in, …] → [B, out, …]. Per voxel of output it
/// keeps two tensors for backward: the convolution's output and the activation (which is written in place of the
/// norm's).
/// In training mode `dropout` > 0 drops whole channels of the output (SpatialDropout3D).
class ConvBlockImpl : public torch::nn::Module {
 public:
  struct Options {
    int64_t in;
    int64_t out;
    int64_t kernel = 3;
    int64_t stride = 1;
    double dropout = 0;
  };
  explicit ConvBlockImpl(const Options& options);
  at::Tensor forward(at::Tensor x);

 private:
  double dropout_;
  torch::nn::Conv3d conv_;
  torch::nn::InstanceNorm3d norm_;
};
TORCH_MODULE(ConvBlock);

/// One level down: x ← conv(x) (stride 2 below the top), x + context(x); context = conv, dropout, conv.
class ContextLevelImpl : public torch::nn::Module {
 public:
  ContextLevelImpl(int64_t in, int64_t out, int64_t stride, double dropout);
  at::Tensor forward(at::Tensor x);

 private:
  ConvBlock down_, context1_, context2_;
};
TORCH_MODULE(ContextLevel);

/// One level up: [B, 2f, D, H, W] and the skip [B, f, 2D, 2H, 2W] → [B, f, 2D, 2H, 2W]: nearest ×2 and conv, concat,
/// conv, 1³ conv.
class LocalizationLevelImpl : public torch::nn::Module {
 public:
  explicit LocalizationLevelImpl(int64_t filters);
  at::Tensor forward(at::Tensor x, at::Tensor skip);

 private:
  ConvBlock up_, merge_, mix_;
};
TORCH_MODULE(LocalizationLevel);

/// The whole network, with 8 269 561 parameters by default.
/// Dropout draws from the default generator of the input's device, like torch::nn::Dropout3d.
/// Source: Isensee et al. 2017, "Brain Tumor Segmentation and Radiomics Survival Prediction", §2.2, with the filters,
/// dropout and affine norm of its widespread Keras version (ellisdg/3DUnetCNN).
class UNet3dImpl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit UNet3dImpl(const UNet3dOptions& options = {});

  /// Maps [B, in_channels, D, H, W] to probabilities [B, classes, D, H, W], each label on its own (sigmoid).
  /// Throws c10::Error when the channels differ or D, H or W is not a positive multiple of edge_multiple().
  at::Tensor forward(at::Tensor x);
  /// Returns a part for each level on the way down and up, and one for each head, which follows its level up. Levels up
  /// read the level below and their skip.
  std::vector<Part> parts() const;

  const UNet3dOptions& options() const noexcept { return options_; }

 private:
  UNet3dOptions options_;
  std::vector<ContextLevel> down_;        // top first
  std::vector<LocalizationLevel> up_;     // bottom first
  std::vector<torch::nn::Conv3d> heads_;  // for the last levels of up_, deepest first
};
TORCH_MODULE(UNet3d);

}  // namespace spillway::runtime
