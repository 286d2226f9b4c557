#include "kfac/factors/factors.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/category.h"
#include "core/hash.h"

namespace spillway::kfac {

FactorScales factor_scales(Convention convention, int64_t batch, double rows, double positions) {
  const double n = std::max(rows, 1.0), s = std::max(positions, 1.0);
  switch (convention) {
    case Convention::kaisa:
      return {1 / (n * s * s), 1 / (n * s * s)};
    case Convention::dp_kfac:
      return {1 / (n * s), n};
    case Convention::fisher:
      break;
  }
  return {1 / n, static_cast<double>(batch)};
}

LayerFactors::LayerFactors(const LayerShape& shape, const at::TensorOptions& like, const PatchWork& work,
                           Convention convention, bool held, FactorSamples samples)
    : shape_(shape), options_(like), work_(work), convention_(convention), sampling_(samples) {
  if (!held) return;
  CategoryScope scope(Category::factors);
  const bool wide = shape_.storage == FactorDtype::fp32;
  const auto type = storage_type(shape_.storage, like.dtype().toScalarType());
  for (const auto& factor : shape_.factors())
    running_.push_back({at::zeros(factor.triangle_sizes(), like.dtype(type)),
                        wide ? at::Tensor() : at::zeros({factor.count, factor.side}, like)});
}

std::vector<at::Tensor> LayerFactors::zeros() const {
  CategoryScope scope(Category::factors);
  std::vector<at::Tensor> all;
  for (const auto& factor : shape_.factors())
    all.push_back(at::zeros({factor.count, factor.side, factor.side}, options_));
  return all;
}

bool LayerFactors::fits(const Captured& captured) const {
  return captured.input.defined() && captured.input.size(1) == shape_.in && captured.gradient.size(1) == shape_.out &&
         (captured.geometry ? captured.geometry->groups == shape_.groups : shape_.kind == LayerKind::linear);
}

Lattice LayerFactors::lattice_of(const Captured& captured, size_t factor, uint64_t seed) const {
  const auto sizes = captured.gradient.sizes();  // [rows, out], or [batch, out, *spatial]
  const auto spatial = captured.geometry ? sizes.slice(2) : sizes.slice(0, 1);
  if (sampling_.is_exact()) return Lattice::whole(spatial.size());
  const int64_t samples = captured.geometry ? sizes[0] : 1;
  return sample_lattice(samples, spatial, sampling_.fewest(shape_.factors()[factor].side), hash_in(seed, factor));
}

void LayerFactors::stage(const Captured& captured, uint64_t seed) {
  if (staged_.empty()) staged_ = zeros();
  const auto& [layer, input, gradient, geometry] = captured;
  const auto lattice = [&](size_t factor) { return lattice_of(captured, factor, seed); };
  if (shape_.separable) {
    flops_ += add_channel_products(staged_[0], input, *geometry, lattice(0), work_);
    flops_ += add_offset_products(staged_[1], input, *geometry, lattice(1), work_);
  } else {
    flops_ += add_input_products(staged_[0], input, geometry, lattice(0), work_);
  }
  flops_ += add_output_products(staged_.back(), gradient, work_.workspace_bytes);
  const int64_t rows = captured.gradient.numel() / shape_.out;
  rows_ += rows;
  samples_ += geometry ? captured.gradient.size(0) : rows;
}

const std::vector<at::Tensor>& LayerFactors::finish(int64_t batch, double loss_scale) {
  if (staged_.empty()) staged_ = zeros();
  const auto rows = static_cast<double>(rows_), samples = static_cast<double>(std::max<int64_t>(samples_, 1));
  const auto scales = factor_scales(convention_, batch, rows, rows / samples);
  const double part = convention_ == Convention::kaisa ? 0.5 : 1;  // one half of each symmetric entry
  std::vector<at::Scalar> by(staged_.size(), part * scales.input);
  by.back() = part * scales.output / loss_scale / loss_scale;
  at::_foreach_mul_(staged_, by);
  if (convention_ == Convention::kaisa)
    for (const auto& factor : staged_) factor.add_(factor.transpose(-2, -1).clone());
  return staged_;
}

std::vector<AverageUpdate> LayerFactors::take_updates() {
  std::vector<AverageUpdate> updates;
  for (size_t i = 0; i < running_.size(); ++i) updates.push_back({running_[i], staged_[i], start(i)});
  discard();
  return updates;
}

std::vector<at::Tensor> LayerFactors::averages() const {
  std::vector<at::Tensor> all;
  for (const auto& running : running_) all.push_back(running.load());
  return all;
}

// Returns the start of a factor's running average. Under kaisa A starts at I, so C = tr_K(A) and K = tr_C(A) start at
// the partial traces of I.
double LayerFactors::start(size_t factor) const {
  if (convention_ != Convention::kaisa) return 0;
  const auto role = shape_.factors()[factor].role;
  if (role == FactorRole::channels) return static_cast<double>(shape_.kernel_volume());
  if (role != FactorRole::offsets) return 1;
  const int64_t channels = shape_.in / shape_.groups;
  return static_cast<double>(channels);
}

void LayerFactors::discard() {
  staged_.clear();
  rows_ = samples_ = 0;
}

}  // namespace spillway::kfac
