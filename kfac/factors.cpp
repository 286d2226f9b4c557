#include "kfac/factors.h"

#include <ATen/ATen.h>

#include "core/category.h"

namespace spillway::kfac {
namespace {

at::Tensor trace_of(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).sum();
}

}  // namespace

void update_running_average(const at::Tensor& running, const at::Tensor& fresh, double decay,
                            const at::Tensor& dropped) {
  // No entry of a Gram matrix is larger than its largest diagonal entry, so the trace tells whether all are finite.
  const auto fresh_trace = trace_of(fresh);
  const auto finite = at::isfinite(fresh_trace);
  dropped.add_(finite.logical_not());
  const auto usable = finite.logical_and(fresh_trace.gt(0));
  const auto started = trace_of(running).gt(0);
  const auto step = at::where(started, 1 - decay, 1.0).to(running.scalar_type()) * usable;
  running.lerp_(fresh.nan_to_num_(0, 0, 0), step);
}

LayerFactors::LayerFactors(const LayerShape& shape, const at::TensorOptions& like, int64_t workspace_bytes)
    : shape_(shape), options_(like), workspace_bytes_(workspace_bytes), running_(zeros()) {}

std::vector<at::Tensor> LayerFactors::zeros() const {
  CategoryScope scope(Category::factors);
  std::vector<at::Tensor> all;
  for (const auto& factor : shape_.factors())
    all.push_back(at::zeros({shape_.groups, factor.side, factor.side}, options_));
  return all;
}

bool LayerFactors::fits(const Captured& captured) const {
  return captured.input.size(1) == shape_.in && captured.gradient.size(1) == shape_.out &&
         (captured.geometry ? captured.geometry->groups == shape_.groups : shape_.kind == LayerKind::linear);
}

void LayerFactors::stage(const Captured& captured) {
  if (!fits(captured)) return;
  if (staged_.empty()) staged_ = zeros();
  const auto* geometry = captured.geometry;
  if (shape_.separable) {
    flops_ += add_channel_products(staged_[0], captured.input, *geometry, workspace_bytes_);
    flops_ += add_offset_products(staged_[1], captured.input, *geometry, workspace_bytes_);
  } else {
    flops_ += add_input_products(staged_[0], captured.input, geometry, workspace_bytes_);
  }
  flops_ += add_output_products(staged_.back(), captured.gradient, workspace_bytes_);
  positions_ += captured.gradient.numel() / shape_.out;
}

const std::vector<at::Tensor>& LayerFactors::finish(int64_t batch, double loss_scale) {
  if (staged_.empty()) staged_ = zeros();
  // A = 1/(B·S) Σ ããᵀ (or its partial traces), G = B Σ ggᵀ.
  for (size_t i = 0; i + 1 < staged_.size(); ++i) staged_[i].div_(std::max<int64_t>(positions_, 1));
  staged_.back().mul_(static_cast<double>(batch) / loss_scale / loss_scale);
  return staged_;
}

void LayerFactors::commit(double decay, const at::Tensor& dropped) {
  for (size_t i = 0; i < staged_.size(); ++i) update_running_average(running_[i], staged_[i], decay, dropped);
  discard();
}

void LayerFactors::discard() {
  staged_.clear();
  positions_ = 0;
}

}  // namespace spillway::kfac
