#include "runtime/models/unet3d.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "runtime/models/convolve.h"
#include "runtime/passes/recompute.h"

namespace spillway::runtime {
namespace {

constexpr double kNegativeSlope = 0.01;
constexpr int64_t kSupervisedLevels = 3;

void require(bool good, const char* field, const std::string& value, const char* allowed) {
  if (!good) throw BadRequest(str("UNet3dOptions: ", field, " is ", value, "; allowed is ", allowed));
}

at::Tensor upsample_twice(const at::Tensor& x) {
  return at::upsample_nearest3d(x, {x.size(2) * 2, x.size(3) * 2, x.size(4) * 2});
}

/// Returns y = LeakyReLU(drop · (γ (x − μ) / √(σ² + ε) + β)), with μ and σ per sample and channel.
/// at::instance_norm would return a view, on which writing in place costs whole copies in backward. Batch norm over [1,
/// B·C, …], which at::instance_norm calls, does not. Dropping a channel is scaling γ and β, so dropout costs no tensor.
at::Tensor norm_drop_relu(const at::Tensor& x, torch::nn::InstanceNorm3dImpl& norm, double dropout) {
  const int64_t batch = x.size(0), channels = x.size(1);
  auto scale = batch == 1 ? norm.weight : norm.weight.repeat(batch);
  auto shift = batch == 1 ? norm.bias : norm.bias.repeat(batch);
  if (dropout > 0) {
    auto kept = at::dropout(at::ones({batch * channels}, scale.options().requires_grad(false)), dropout, true);
    scale = scale * kept;
    shift = shift * kept;
  }
  auto y =
      at::batch_norm(x.reshape({1, batch * channels, x.size(2), x.size(3), x.size(4)}), scale, shift, {}, {},
                     /*training=*/true, /*momentum=*/0, norm.options.eps(), at::globalContext().userEnabledCuDNN());
  at::leaky_relu_(y, kNegativeSlope);
  return batch == 1 ? y : y.view(x.sizes());
}

void check_input(const at::Tensor& x, const UNet3dOptions& options) {
  const int64_t multiple = options.edge_multiple();
  TORCH_CHECK(x.dim() == 5 && x.size(1) == options.in_channels, "UNet3d: input has shape ", x.sizes(),
              "; needed is [B, ", options.in_channels, ", D, H, W]");
  for (int64_t d = 2; d < 5; ++d)
    TORCH_CHECK(x.size(d) > 0 && x.size(d) % multiple == 0, "UNet3d: input has shape ", x.sizes(),
                "; D, H and W must be positive multiples of ", multiple, " at depth ", options.depth, ", not ",
                x.size(d));
}

at::Tensor go_down(ContextLevel& level, at::Tensor x, bool recompute) {
  if (!recompute) return level->forward(std::move(x));
  return recomputed([level](const auto& in) mutable { return level->forward(in[0]); }, {std::move(x)});
}

at::Tensor go_up(LocalizationLevel& level, at::Tensor x, at::Tensor skip, bool recompute) {
  if (!recompute) return level->forward(std::move(x), std::move(skip));
  return recomputed([level](const auto& in) mutable { return level->forward(in[0], in[1]); },
                    {std::move(x), std::move(skip)});
}

}  // namespace

void UNet3dOptions::validate() const {
  require(in_channels >= 1, "in_channels", std::to_string(in_channels), "1 or more");
  require(classes >= 1, "classes", std::to_string(classes), "1 or more");
  require(filters >= 1, "filters", std::to_string(filters), "1 or more");
  require(depth >= 2 && depth <= 8, "depth", std::to_string(depth), "2 to 8");
  require(dropout >= 0 && dropout < 1, "dropout", std::to_string(dropout), "0 up to, not including, 1");
}

ConvBlockImpl::ConvBlockImpl(const Options& o)
    : dropout_(o.dropout),
      conv_(register_module(
          "conv",
          torch::nn::Conv3d(torch::nn::Conv3dOptions(o.in, o.out, o.kernel).stride(o.stride).padding(o.kernel / 2)))),
      norm_(register_module("norm", torch::nn::InstanceNorm3d(torch::nn::InstanceNorm3dOptions(o.out).affine(true)))) {}

at::Tensor ConvBlockImpl::forward(at::Tensor x) {
  x = convolve(conv_, x);
  return norm_drop_relu(x, *norm_, is_training() ? dropout_ : 0.0);
}

ContextLevelImpl::ContextLevelImpl(int64_t in, int64_t out, int64_t stride, double dropout)
    : down_(register_module("down", ConvBlock(ConvBlockImpl::Options{.in = in, .out = out, .stride = stride}))),
      context1_(
          register_module("context1", ConvBlock(ConvBlockImpl::Options{.in = out, .out = out, .dropout = dropout}))),
      context2_(register_module("context2", ConvBlock(ConvBlockImpl::Options{.in = out, .out = out}))) {}

at::Tensor ContextLevelImpl::forward(at::Tensor x) {
  x = down_->forward(std::move(x));
  return x + context2_->forward(context1_->forward(x));
}

LocalizationLevelImpl::LocalizationLevelImpl(int64_t filters)
    : up_(register_module("up", ConvBlock(ConvBlockImpl::Options{.in = 2 * filters, .out = filters}))),
      merge_(register_module("merge", ConvBlock(ConvBlockImpl::Options{.in = 2 * filters, .out = filters}))),
      mix_(register_module("mix", ConvBlock(ConvBlockImpl::Options{.in = filters, .out = filters, .kernel = 1}))) {}

at::Tensor LocalizationLevelImpl::forward(at::Tensor x, at::Tensor skip) {
  x = upsample_twice(x);
  x = up_->forward(std::move(x));
  x = at::cat({std::move(skip), std::move(x)}, 1);
  x = merge_->forward(std::move(x));
  return mix_->forward(std::move(x));
}

UNet3dImpl::UNet3dImpl(const UNet3dOptions& options) : options_(options) {
  options.validate();
  auto filters = [&](int64_t level) { return options.filters << level; };
  for (int64_t level = 0; level < options.depth; ++level) {
    ContextLevel down(level ? filters(level - 1) : options.in_channels, filters(level), level ? 2 : 1, options.dropout);
    down_.push_back(register_module(str("down", level), down));
  }
  const int64_t heads = std::min(kSupervisedLevels, options.depth - 1);
  for (int64_t level = options.depth - 2; level >= 0; --level) {
    up_.push_back(register_module(str("up", level), LocalizationLevel(filters(level))));
    if (level >= heads) continue;
    torch::nn::Conv3d head(torch::nn::Conv3dOptions(filters(level), options.classes, 1));
    heads_.push_back(register_module(str("head", level), head));
  }
}

at::Tensor UNet3dImpl::forward(at::Tensor x) {
  check_input(x, options_);
  std::vector<at::Tensor> skips;
  for (size_t level = 0; level < down_.size(); ++level) {
    x = go_down(down_[level], std::move(x), options_.recompute);
    if (level + 1 < down_.size()) skips.push_back(x);
  }
  // logits = head0 + up(head1 + up(head2)): each head works at its own resolution, and the sum is classified.
  at::Tensor logits;
  const size_t unsupervised = up_.size() - heads_.size();
  for (size_t level = 0; level < up_.size(); ++level) {
    at::Tensor skip = std::move(skips.back());
    skips.pop_back();
    x = go_up(up_[level], std::move(x), std::move(skip), options_.recompute);
    if (level < unsupervised) continue;
    auto here = heads_[level - unsupervised]->forward(x);
    logits = logits.defined() ? upsample_twice(logits).add_(here) : std::move(here);
  }
  return logits.sigmoid_();
}

std::vector<Part> UNet3dImpl::parts() const {
  std::vector<Part> all;
  for (size_t level = 0; level < down_.size(); ++level) {
    const std::string name = str("down", level);
    auto run = [down = down_[level], options = options_, level](const auto& inputs, const Batch& batch) mutable {
      if (level > 0) return go_down(down, inputs[0], options.recompute);
      check_input(batch.input, options);
      return go_down(down, batch.input, options.recompute);
    };
    all.push_back({name, part_before(level), {name}, std::move(run)});
  }
  int x = std::ssize(all) - 1, logits = -1;
  const size_t unsupervised = up_.size() - heads_.size();
  for (size_t i = 0; i < up_.size(); ++i) {
    const size_t level = up_.size() - 1 - i;
    auto run = [up = up_[i], recompute = options_.recompute](const auto& inputs, const Batch&) mutable {
      return go_up(up, inputs[0], inputs[1], recompute);
    };
    all.push_back({str("up", level), {x, static_cast<int>(level)}, {str("up", level)}, std::move(run)});
    x = std::ssize(all) - 1;
    if (i < unsupervised) continue;
    auto classify = [head = heads_[i - unsupervised], is_last = level == 0](const auto& inputs, const Batch&) mutable {
      at::Tensor here = head->forward(inputs[0]);
      if (inputs.size() > 1) here = upsample_twice(inputs[1]).add_(here);
      return is_last ? here.sigmoid_() : here;
    };
    std::vector<int> reads{x};
    if (logits >= 0) reads.push_back(logits);
    all.push_back({str("head", level), std::move(reads), {str("head", level)}, std::move(classify)});
    logits = std::ssize(all) - 1;
  }
  return all;
}

}  // namespace spillway::runtime
