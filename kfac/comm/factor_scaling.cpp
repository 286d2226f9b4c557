#include "kfac/comm/factor_scaling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kfac/factors/packed_triangles.h"

namespace spillway::kfac {
namespace {

// Returns a power of two ≥ `bound`, clamped to the range that float32 can be multiplied and divided by. Returns 1 when
// there is nothing to scale.
double power_above(double bound) {
  if (!(bound > 0) || !std::isfinite(bound)) return 1;
  return std::exp2(std::clamp(std::ceil(std::log2(bound)), -120.0, 120.0));
}

// Rounds block by block: each block is read before anything is written over it.
template <class T>
void round_in_place(std::byte* memory, int64_t begin, int64_t end, float factor) {
  std::array<float, 1024> wide;
  std::array<T, 1024> narrow;
  for (int64_t size = 0; begin < end; begin += size) {
    size = std::min<int64_t>(wide.size(), end - begin);
    std::memcpy(wide.data(), memory + begin * sizeof(float), size * sizeof(float));
    for (int64_t k = 0; k < size; ++k) narrow[k] = static_cast<T>(wide[k] * factor);
    std::memcpy(memory + begin * sizeof(T), narrow.data(), size * sizeof(T));
  }
}

}  // namespace

SeenFactors::SeenFactors(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch) {
  const size_t layer_count = bucket.layers.size();
  numbers_.push_back(static_cast<double>(batch));
  std::vector<at::Tensor> largest;  // no entry of a Gram matrix exceeds its largest diagonal entry
  for (size_t l = 0; l < layer_count; ++l) {
    const auto& layer = layers[bucket.layers[l]];
    numbers_.push_back(static_cast<double>(layer.positions()));
    for (const auto& matrix : layer.staged()) {
      const bool is_last = &matrix == &layer.staged().back();
      factors_.push_back({is_last ? 0 : 1 + l, 1 + layer_count + largest.size(), packed_elements({matrix})});
      largest.push_back(matrix.diagonal(0, -2, -1).max());
    }
  }
  const auto on_host = at::stack(largest).to(at::kCPU, at::kDouble);
  numbers_.insert(numbers_.end(), on_host.const_data_ptr<double>(), on_host.const_data_ptr<double>() + on_host.numel());
}

std::vector<Scaling> SeenFactors::scalings(std::span<const double> all, int64_t rank) const {
  const size_t world = all.size() / numbers_.size();
  const auto number = [&](size_t place, size_t r) { return all[r * numbers_.size() + place]; };
  const auto weight = [&](size_t place, size_t r) {
    double sum = 0;
    for (size_t other = 0; other < world; ++other) sum += number(place, other);
    return sum > 0 ? static_cast<double>(world) * number(place, r) / sum : 0.0;
  };
  std::vector<Scaling> scalings;
  for (const auto& factor : factors_) {
    double largest = 0;
    for (size_t r = 0; r < world; ++r)
      largest = std::max(largest, weight(factor.weight, r) * number(factor.largest, r));
    const double power = power_above(largest);
    scalings.push_back({weight(factor.weight, rank) / power, power, factor.elements});
  }
  return scalings;
}

void round_in_place(std::span<std::byte> memory, const std::vector<Scaling>& scalings, FactorDtype dtype) {
  int64_t begin = 0;
  for (const auto& scaling : scalings) {
    const auto round = dtype == FactorDtype::bf16 ? round_in_place<c10::BFloat16> : round_in_place<c10::Half>;
    round(memory.data(), begin, begin + scaling.elements, static_cast<float>(scaling.before));
    begin += scaling.elements;
  }
}

}  // namespace spillway::kfac
