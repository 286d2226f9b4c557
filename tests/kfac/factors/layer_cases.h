/// Small float64 layers of every kind, each run once forward and backward, with the numbers that an oracle needs.
#pragma once
#include <gtest/gtest.h>
#include <torch/nn/functional/padding.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include "kfac/factors/capture.h"
#include "kfac/factors/layers.h"
#include "tests/reference/kfac_dense.h"

namespace spillway::kfac {

struct LayerCase {
  std::string name;
  std::function<torch::nn::AnyModule()> make;
  std::vector<int64_t> input;
  Geometry geometry;  ///< the zero-padded convolution's; a Linear's is that of a convolution without spatial dimensions
  std::function<at::Tensor(const at::Tensor&)> padded = [](const at::Tensor& x) { return x; };
};

inline std::ostream& operator<<(std::ostream& out, const LayerCase& layer) {
  return out << layer.name;
}

// NOLINTNEXTLINE(readability-function-size): it is a table
inline std::vector<LayerCase> layer_cases() {
  namespace nn = torch::nn;
  namespace F = torch::nn::functional;
  return {
      {"Linear", [] { return nn::AnyModule(nn::Linear(3, 4)); }, {5, 3}, {}},
      {"LinearWithoutBias", [] { return nn::AnyModule(nn::Linear(nn::LinearOptions(3, 4).bias(false))); }, {5, 3}, {}},
      {"Conv1d",
       [] { return nn::AnyModule(nn::Conv1d(nn::Conv1dOptions(2, 3, 3).padding(1))); },
       {3, 2, 6},
       {{3}, {1}, {1}, {1}}},
      {"Conv1dStridedDilated",
       [] {
         return nn::AnyModule(nn::Conv1d(nn::Conv1dOptions(2, 3, 2).stride(2).dilation(3).padding(2).bias(false)));
       },
       {2, 2, 9},
       {{2}, {2}, {2}, {3}}},
      {"Conv2d",
       [] {
         return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(2, 3, {3, 2}).padding({1, 0})));
       },
       {2, 2, 4, 5},
       {{3, 2}, {1, 1}, {1, 0}, {1, 1}}},
      {"Conv2dStrided",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(3, 2, 3).stride(2).padding(1))); },
       {2, 3, 7, 5},
       {{3, 3}, {2, 2}, {1, 1}, {1, 1}}},
      {"Conv2dGrouped",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(4, 6, 2).groups(2))); },
       {2, 4, 4, 4},
       {{2, 2}, {1, 1}, {0, 0}, {1, 1}, 2}},
      {"Conv2dDepthwise",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(3, 3, 3).groups(3).padding(1).bias(false))); },
       {2, 3, 4, 4},
       {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 3}},
      {"Conv2dPointwise",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(4, 3, 1))); },
       {3, 4, 3, 3},
       {{1, 1}, {1, 1}, {0, 0}, {1, 1}}},
      {"Conv2dSame",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(torch::kSame))); },
       {2, 2, 4, 3},
       {{3, 3}, {1, 1}, {1, 1}, {1, 1}}},
      {"Conv2dSameEvenKernel",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(2, 3, 2).padding(torch::kSame))); },
       {2, 2, 4, 3},
       {{2, 2}, {1, 1}, {0, 0}, {1, 1}},
       [](const at::Tensor& x) {
         return F::pad(x, F::PadFuncOptions({0, 1, 0, 1}));
       }},
      {"Conv2dReflect",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(1).padding_mode(torch::kReflect))); },
       {2, 2, 4, 3},
       {{3, 3}, {1, 1}, {0, 0}, {1, 1}},
       [](const at::Tensor& x) {
         return F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReflect));
       }},
      {"Conv2dCircular",
       [] { return nn::AnyModule(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(1).padding_mode(torch::kCircular))); },
       {2, 2, 4, 3},
       {{3, 3}, {1, 1}, {0, 0}, {1, 1}},
       [](const at::Tensor& x) {
         return F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kCircular));
       }},
      {"Conv3d",
       [] { return nn::AnyModule(nn::Conv3d(nn::Conv3dOptions(2, 2, 3).padding(1))); },
       {2, 2, 3, 4, 3},
       {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},
      {"Conv3dMixed",
       [] {
         return nn::AnyModule(nn::Conv3d(
             nn::Conv3dOptions(2, 3, {1, 2, 3}).stride({1, 2, 1}).padding({0, 1, 2}).dilation({1, 1, 2}).bias(false)));
       },
       {1, 2, 2, 4, 5},
       {{1, 2, 3}, {1, 2, 1}, {0, 1, 2}, {1, 1, 2}}},
      {"Conv3dPaddedBeyondItsInput",
       [] { return nn::AnyModule(nn::Conv3d(nn::Conv3dOptions(1, 2, 3).padding(3))); },
       {1, 1, 2, 1, 2},
       {{3, 3, 3}, {1, 1, 1}, {3, 3, 3}, {1, 1, 1}}},
  };
}

/// One layer, its input and its gradients. The loss is Σ over samples of Σ w·y², divided by the number of samples.
struct LayerRun {
  explicit LayerRun(const LayerCase& layer_case, uint64_t seed = 0) {
    torch::manual_seed(seed);
    auto any = layer_case.make();
    module = any.ptr();
    module->to(at::kDouble);
    input = at::randn(layer_case.input, at::kDouble);
    output = any.forward<at::Tensor>(input);
    output.retain_grad();
    loss = (output.pow(2) * at::randn_like(output)).sum() / input.size(0);
  }
  /// Returns the gradients of the module after backward. The bias is undefined where there is none.
  LayerGradient gradient() const {
    const auto parameters = module->named_parameters(false);
    return {parameters["weight"].grad().clone(),
            parameters.contains("bias") ? parameters["bias"].grad().clone() : at::Tensor()};
  }

  std::shared_ptr<torch::nn::Module> module;
  at::Tensor input, output, loss;
};

/// Returns the options of a form of factors. Under `block` the limits are so small that blocks of one channel and of
/// two outputs occur. Linear layers get blocks as well.
inline KfacOptions in_form(ConvFactors form) {
  KfacOptions options{.conv_factors = form};
  if (form != ConvFactors::block) return options;
  options.max_factor_dim = options.max_linear_dim = 2;
  options.block_linear = true;
  return options;
}
inline constexpr ConvFactors kForms[] = {ConvFactors::full, ConvFactors::separable, ConvFactors::block};

/// Returns the naive factors of a run, after its backward. They are [A, G] in the blocks of `shape`, or [C, K, G] where
/// it is separable.
inline std::vector<at::Tensor> naive_factors(const LayerRun& run, const LayerCase& layer_case,
                                             const LayerShape& shape) {
  const auto g = reference::diagonal_blocks(reference::output_factor(run.output.grad(), layer_case.geometry.groups),
                                            shape.output_blocks);
  const auto input = layer_case.padded(run.input);
  const auto a = reference::input_factor(input, layer_case.geometry, shape.bias && !shape.bias_apart());
  if (!shape.separable) return {reference::diagonal_blocks(a, shape.input_blocks), g};
  const int64_t channels = shape.in / shape.groups, volume = shape.kernel_volume();
  return {reference::channel_trace(a, channels, volume), reference::offset_trace(a, channels, volume), g};
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).abs().max().item<double>();
}

}  // namespace spillway::kfac
