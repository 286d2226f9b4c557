#include "runtime/training/loss_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>

#include "core/error.h"

namespace spillway::runtime {
namespace {

constexpr double kMinScale = 0x1p-24;  // float16's smallest number

}  // namespace

LossScaler::LossScaler(const LossScaling& scaling, c10::Device device)
    : growth_interval_((scaling.validate(), scaling.growth_interval)),
      scale_(scaling.initial),
      overflowed_(at::zeros({1}, at::TensorOptions(at::kFloat).device(device))),
      inverse_(at::ones_like(overflowed_)) {}

bool LossScaler::unscale(const std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  overflowed_.zero_();
  inverse_.fill_(1 / scale_);
  for (const at::Tensor& gradient : gradients)
    at::_amp_foreach_non_finite_check_and_unscale_({gradient}, overflowed_, inverse_);
  if (overflowed_.item<float>() == 0) {
    if (++good_steps_ == growth_interval_) {
      scale_ = std::min(scale_ * 2, LossScaling::kMaxScale);
      good_steps_ = 0;
    }
    return true;
  }
  if (scale_ <= kMinScale)
    throw std::runtime_error(str("[loss_scaler] gradients are not finite even with a loss scale of ", scale_,
                                 ", after ", skipped_,
                                 " steps left out: the loss diverges, or the data holds what is no number"));
  scale_ /= 2;
  good_steps_ = 0;
  ++skipped_;
  return false;
}

at::Tensor LossScaler::pack() const {
  return at::tensor({scale_, static_cast<double>(good_steps_), static_cast<double>(skipped_)}, at::kDouble);
}

void LossScaler::unpack(const at::Tensor& packed) {
  if (!packed.defined() || packed.scalar_type() != at::kDouble || packed.numel() != 3)
    throw BadRequest("[loss_scaler.unpack] the state of a loss scale is 3 float64 numbers");
  const auto host = packed.cpu();
  scale_ = host[0].item<double>();
  good_steps_ = static_cast<int64_t>(host[1].item<double>());
  skipped_ = static_cast<int64_t>(host[2].item<double>());
}

}  // namespace spillway::runtime
