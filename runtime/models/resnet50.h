/// ResNet-50, laid out and named like torchvision's.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct ResNet50Options {
  int64_t classes = 1000;  ///< ≥ 2
  int64_t filters = 64;    ///< channels of the stem, doubled at every stage; ≥ 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// A block: x + (conv 1² → conv 3², with the stride → conv 1² to four times the width). Each convolution is followed by
/// batch norm, with ReLU between them and after the sum. Where the shape changes, x goes through a strided conv 1² and
/// batch norm.
class BottleneckImpl : public torch::nn::Module {
 public:
  BottleneckImpl(int64_t in, int64_t width, int64_t stride);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_, conv2_, conv3_;
  torch::nn::BatchNorm2d bn1_, bn2_, bn3_;
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(Bottleneck);

/// ResNet-50 with 25 557 032 parameters by default. Weights of convolutions are drawn as torchvision draws them (He et
/// al. 2015, fan out).   Source: He et al. 2016, table 1, with the stride in the 3² convolution as in torchvision.
class ResNet50Impl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit ResNet50Impl(const ResNet50Options& options = {});

  /// Maps [B, 3, H, W] to raw scores [B, classes]. Throws c10::Error when there are not three channels.
  at::Tensor forward(at::Tensor x);
  /// Returns a part for the stem, one for each block, and one for the head.
  std::vector<Part> parts() const;

  const ResNet50Options& options() const noexcept { return options_; }

 private:
  ResNet50Options options_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet50);

}  // namespace spillway::runtime
