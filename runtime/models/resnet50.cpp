#include "runtime/models/resnet50.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include "core/error.h"

namespace spillway::runtime {
namespace {

constexpr int64_t kExpansion = 4;

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  return conv;
}

/// Makes a stage. The first block changes width and resolution; the others keep them.
torch::nn::Sequential stage(int64_t in, int64_t width, int64_t blocks, int64_t stride) {
  torch::nn::Sequential layers;
  layers->push_back(Bottleneck(in, width, stride));
  for (int64_t i = 1; i < blocks; ++i) layers->push_back(Bottleneck(width * kExpansion, width, 1));
  return layers;
}

at::Tensor relu_of(torch::nn::BatchNorm2d& norm, const at::Tensor& x) {
  at::Tensor y = norm->forward(x);
  return at::relu_(y);
}

at::Tensor run_stem(torch::nn::Conv2d& conv, torch::nn::BatchNorm2d& norm, const at::Tensor& images) {
  return at::max_pool2d(relu_of(norm, conv->forward(images)), 3, 2, 1);
}

at::Tensor run_head(torch::nn::Linear& fc, const at::Tensor& x) {
  return fc->forward(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace

void ResNet50Options::validate() const {
  if (classes < 2) throw BadRequest(str("ResNet50Options: classes is ", classes, "; allowed is 2 or more"));
  if (filters < 1) throw BadRequest(str("ResNet50Options: filters is ", filters, "; allowed is 1 or more"));
}

BottleneckImpl::BottleneckImpl(int64_t in, int64_t width, int64_t stride)
    : conv1_(register_module("conv1", convolution(in, width, 1))),
      conv2_(register_module("conv2", convolution(width, width, 3, stride))),
      conv3_(register_module("conv3", convolution(width, width * kExpansion, 1))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(width))),
      bn2_(register_module("bn2", torch::nn::BatchNorm2d(width))),
      bn3_(register_module("bn3", torch::nn::BatchNorm2d(width * kExpansion))) {
  if (stride == 1 && in == width * kExpansion) return;
  downsample_ = register_module("downsample", torch::nn::Sequential(convolution(in, width * kExpansion, 1, stride),
                                                                    torch::nn::BatchNorm2d(width * kExpansion)));
}

at::Tensor BottleneckImpl::forward(const at::Tensor& x) {
  at::Tensor y = relu_of(bn1_, conv1_->forward(x));
  y = relu_of(bn2_, conv2_->forward(y));
  y = bn3_->forward(conv3_->forward(y));
  y += downsample_ ? downsample_->forward(x) : x;
  return at::relu_(y);
}

ResNet50Impl::ResNet50Impl(const ResNet50Options& options)
    : options_((options.validate(), options)),
      conv1_(register_module("conv1", convolution(3, options.filters, 7, 2))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(options.filters))),
      layer1_(register_module("layer1", stage(options.filters, options.filters, 3, 1))),
      layer2_(register_module("layer2", stage(options.filters * 4, options.filters * 2, 4, 2))),
      layer3_(register_module("layer3", stage(options.filters * 8, options.filters * 4, 6, 2))),
      layer4_(register_module("layer4", stage(options.filters * 16, options.filters * 8, 3, 2))),
      fc_(register_module("fc", torch::nn::Linear(options.filters * 32, options.classes))) {}

at::Tensor ResNet50Impl::forward(at::Tensor x) {
  TORCH_CHECK(x.dim() == 4 && x.size(1) == 3, "ResNet50: input has shape ", x.sizes(), "; needed is [B, 3, H, W]");
  x = run_stem(conv1_, bn1_, x);
  for (torch::nn::Sequential* layer : {&layer1_, &layer2_, &layer3_, &layer4_}) x = (*layer)->forward(x);
  return run_head(fc_, x);
}

std::vector<Part> ResNet50Impl::parts() const {
  std::vector<Part> all;
  const auto add = [&](std::string name, std::vector<std::string> modules, auto run) {
    all.push_back({std::move(name), part_before(all.size()), std::move(modules), std::move(run)});
  };
  add("stem", {"conv1", "bn1"}, [conv = conv1_, norm = bn1_](const auto&, const Batch& batch) mutable {
    return run_stem(conv, norm, batch.input);
  });
  int64_t number = 0;
  for (const torch::nn::Sequential* layer : {&layer1_, &layer2_, &layer3_, &layer4_}) {
    ++number;
    for (size_t i = 0; i < (*layer)->size(); ++i) {
      const std::string name = str("layer", number, ".", i);
      add(name, {name}, [block = (*layer)->ptr<BottleneckImpl>(i)](const auto& inputs, const Batch&) {
        return block->forward(inputs[0]);
      });
    }
  }
  add("head", {"fc"}, [fc = fc_](const auto& inputs, const Batch&) mutable { return run_head(fc, inputs[0]); });
  return all;
}

}  // namespace spillway::runtime
