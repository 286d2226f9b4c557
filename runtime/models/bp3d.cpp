#include "runtime/models/bp3d.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "runtime/models/convolve.h"

namespace spillway::runtime {
namespace {

constexpr int64_t kMultiple = 4;  // two levels, each half as large

torch::nn::Conv3d convolution(int64_t in, int64_t out) {
  return torch::nn::Conv3d(torch::nn::Conv3dOptions(in, out, 3).padding(1));
}

/// Returns relu(pool(x)), which equals pool(relu(x)): after the pool only an eighth of the voxels must be kept for
/// backward.
at::Tensor pool_and_relu(const at::Tensor& x) {
  at::Tensor y = at::max_pool3d(x, 2);
  return at::relu_(y);
}

at::Tensor relu_and_upsample(at::Tensor x) {
  at::relu_(x);
  return at::upsample_nearest3d(x, {x.size(2) * 2, x.size(3) * 2, x.size(4) * 2});
}

void check_input(const at::Tensor& x, const Bp3dOptions& options) {
  TORCH_CHECK(x.dim() == 5 && x.size(1) == options.in_channels, "Bp3d: input has shape ", x.sizes(), "; needed is [B, ",
              options.in_channels, ", D, H, W]");
  for (int64_t d = 2; d < 5; ++d)
    TORCH_CHECK(x.size(d) > 0 && x.size(d) % kMultiple == 0, "Bp3d: input has shape ", x.sizes(),
                "; D, H and W must be positive multiples of ", kMultiple, ", not ", x.size(d));
}

}  // namespace

void Bp3dOptions::validate() const {
  auto at_least = [](int64_t least, const char* field, int64_t value) {
    if (value < least) throw BadRequest(str("Bp3dOptions: ", field, " is ", value, "; allowed is ", least, " or more"));
  };
  at_least(1, "in_channels", in_channels);
  at_least(2, "classes", classes);
  at_least(1, "filters", filters);
}

Bp3dImpl::Bp3dImpl(const Bp3dOptions& options)
    : options_((options.validate(), options)),
      down1_(register_module("down1", convolution(options.in_channels, options.filters))),
      down2_(register_module("down2", convolution(options.filters, options.filters))),
      up1_(register_module("up1", convolution(options.filters, options.filters))),
      up2_(register_module("up2", convolution(options.filters, options.filters))),
      head_(register_module("head", torch::nn::Conv3d(torch::nn::Conv3dOptions(options.filters, options.classes, 1)))) {
}

at::Tensor Bp3dImpl::forward(at::Tensor x) {
  check_input(x, options_);
  x = pool_and_relu(convolve(down1_, x));
  x = pool_and_relu(convolve(down2_, x));
  x = relu_and_upsample(convolve(up1_, x));
  x = relu_and_upsample(convolve(up2_, x));
  return head_->forward(x);
}

std::vector<Part> Bp3dImpl::parts() const {
  std::vector<Part> all;
  const auto add = [&](const char* name, auto run) {
    all.push_back({name, part_before(all.size()), {name}, std::move(run)});
  };
  add("down1", [conv = down1_, options = options_](const auto&, const Batch& batch) mutable {
    check_input(batch.input, options);
    return pool_and_relu(convolve(conv, batch.input));
  });
  add("down2", [conv = down2_](const auto& in, const Batch&) mutable { return pool_and_relu(convolve(conv, in[0])); });
  add("up1", [conv = up1_](const auto& in, const Batch&) mutable { return relu_and_upsample(convolve(conv, in[0])); });
  add("up2", [conv = up2_](const auto& in, const Batch&) mutable { return relu_and_upsample(convolve(conv, in[0])); });
  add("head", [conv = head_](const auto& in, const Batch&) mutable { return conv->forward(in[0]); });
  return all;
}

}  // namespace spillway::runtime
