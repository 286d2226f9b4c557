#include "kfac/plan/layer_shape.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace spillway::kfac {

std::string_view name(LayerKind kind) {
  constexpr std::string_view names[] = {"linear", "conv1d", "conv2d", "conv3d"};
  return names[static_cast<size_t>(kind)];
}

int64_t LayerShape::kernel_volume() const {
  return std::accumulate(kernel.begin(), kernel.end(), int64_t{1}, std::multiplies<>());
}

int64_t LayerShape::input_side() const {
  return in / groups * kernel_volume() + (bias ? 1 : 0);
}

std::vector<FactorShape> LayerShape::factors() const {
  const auto factor = [&](FactorRole role, int64_t side, int64_t count) {
    const bool all = role == FactorRole::offsets || inverse.method != Method::eigen;
    return FactorShape{role, side, count, all ? side : inverse.rank.within(side, kind != LayerKind::linear)};
  };
  const auto output = factor(FactorRole::output, out / groups / output_blocks, groups * output_blocks);
  if (separable)
    return {factor(FactorRole::channels, in / groups, groups), factor(FactorRole::offsets, kernel_volume(), groups),
            output};
  const int64_t columns = input_side() - (bias_apart() ? 1 : 0);
  return {factor(FactorRole::input, columns / input_blocks, groups * input_blocks), output};
}

int64_t LayerShape::gradient_elements() const {
  return out * (in / groups * kernel_volume() + (bias ? 1 : 0));
}

LayerShape side_by_side(LayerShape layer, int64_t count) {
  layer.out *= count, layer.in *= count, layer.groups *= count, layer.layers *= count;
  return layer;
}

int64_t factor_elements(const LayerShape& layer) {
  int64_t sum = 0;
  for (const auto& factor : layer.factors()) sum += factor.elements();
  return sum;
}

int64_t HeldTensor::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<HeldTensor> factor_tensors(const LayerShape& layer) {
  const auto factors = layer.factors();
  const bool small = layer.storage != FactorDtype::fp32;
  std::vector<HeldTensor> tensors;
  for (size_t f = 0; f < factors.size(); ++f) {
    const auto [role, side, count, rank] = factors[f];
    tensors.push_back({"factor" + std::to_string(f), factors[f].triangle_sizes(), f, small});
    if (small) tensors.push_back({"factor_diagonal" + std::to_string(f), {count, side}, f});
  }
  return tensors;
}

namespace {

// Returns the sizes of denominators().
std::vector<int64_t> reciprocal_sizes(const LayerShape& layer, const std::vector<FactorShape>& factors) {
  const auto values_of = [&](const FactorShape& factor) { return factor.count / layer.groups * factor.values(); };
  int64_t columns = 1;
  for (size_t f = 0; f + 1 < factors.size(); ++f) columns *= values_of(factors[f]);
  return {layer.groups, values_of(factors.back()), columns + (layer.bias_apart() ? 1 : 0)};
}

}  // namespace

std::vector<HeldTensor> inverse_tensors(const LayerShape& layer) {
  const auto factors = layer.factors();
  const bool eigen = layer.inverse.method == Method::eigen, small = layer.storage != FactorDtype::fp32;
  std::vector<HeldTensor> tensors;
  for (size_t f = 0; f < factors.size(); ++f) {
    const std::string number = std::to_string(f);
    const auto [role, side, count, rank] = factors[f];
    tensors.push_back({(eigen ? "vectors" : "inverse") + number, {count, side, rank}, f, small});
    if (eigen && !layer.inverse.precompute_outer)
      tensors.push_back({"values" + number, {count, factors[f].values()}, f});
    if (!eigen && small) tensors.push_back({"inverse_diagonal" + number, {count, side}, f});
  }
  if (layer.inverse.precompute_outer)
    tensors.push_back({"reciprocal", reciprocal_sizes(layer, factors), factors.size() - 1});
  return tensors;
}

int64_t bytes_of(const std::vector<HeldTensor>& tensors, FactorDtype storage, int64_t element_bytes) {
  int64_t sum = 0;
  for (const auto& tensor : tensors)
    sum += tensor.elements() * (tensor.in_storage && storage != FactorDtype::fp32 ? 2 : element_bytes);
  return sum;
}

int64_t eigenbasis_elements(const LayerShape& layer) {
  int64_t sum = 0;
  for (const auto& tensor : inverse_tensors(layer)) sum += tensor.elements();
  return sum;
}

std::vector<HeldTensor> scale_tensors(const LayerShape& layer) {
  constexpr int64_t kFew = int64_t{1} << 16;
  const auto factors = layer.factors();
  const FactorShape &a = factors.front(), &g = factors.back();
  if (layer.inverse.method != Method::eigen) return {};
  if (layer.inverse.precompute_outer && !a.is_truncated() && !g.is_truncated()) return {};
  const int64_t rows = g.count, columns = layer.separable ? factors[1].side : a.count / layer.groups;
  std::vector<HeldTensor> tensors;
  tensors.push_back({"kept", {rows, g.rank, columns, a.rank}});
  if (a.is_truncated()) tensors.push_back({"by_g", {rows, g.rank, columns}});
  if (g.is_truncated()) tensors.push_back({"by_a", {rows, columns, a.rank}});
  if (a.is_truncated() && g.is_truncated()) tensors.push_back({"of_all", {rows, columns}});
  if (layer.bias_apart()) tensors.push_back({"bias_kept", {rows, g.rank}});
  if (layer.bias_apart() && g.is_truncated()) tensors.push_back({"bias_by_a", {rows}});
  int64_t elements = 0;
  for (const HeldTensor& tensor : tensors) elements += tensor.elements();
  return elements <= std::max(kFew, layer.gradient_elements() / 4) ? tensors : std::vector<HeldTensor>();
}

double decomposition_cost(const FactorShape& factor) {
  const auto count = static_cast<double>(factor.count), n = static_cast<double>(factor.side),
             r = static_cast<double>(factor.rank);
  return count * (factor.is_truncated() ? (4 * n * n * r + 8 * n * r * r) / 9 + r * r * r : n * n * n);
}

double decomposition_flops(const LayerShape& layer, const FactorShape& factor) {
  return (layer.inverse.method == Method::eigen ? 9 : 1) * decomposition_cost(factor);
}

double precondition_flops(const LayerShape& layer) {
  double ranks = 0;
  for (const auto& factor : layer.factors()) ranks += static_cast<double>(factor.rank);
  const double each = layer.inverse.method == Method::eigen ? 4 : 2;
  return each * static_cast<double>(layer.gradient_elements()) * ranks;
}

namespace {

// Returns the smallest divisor b of `count` with each·count/b + extra ≤ most. Only a single block pays extra.
int64_t fewest_blocks(int64_t count, int64_t each, int64_t extra, int64_t most) {
  if (count * each + extra <= most) return 1;
  for (int64_t blocks = 2; blocks < count; ++blocks)
    if (count % blocks == 0 && count / blocks * each <= most) return blocks;
  return count;
}

}  // namespace

LayerShape in_blocks(LayerShape layer, int64_t max_side) {
  layer.input_blocks = fewest_blocks(layer.in / layer.groups, layer.kernel_volume(), layer.bias ? 1 : 0, max_side);
  layer.output_blocks = fewest_blocks(layer.out / layer.groups, 1, 0, max_side);
  return layer;
}

bool is_separable(const LayerShape& layer, ConvFactors form, int64_t max_factor_dim) {
  if (layer.kernel_volume() <= 1 || layer.in / layer.groups <= 1) return false;
  if (form == ConvFactors::automatic) return layer.input_side() > max_factor_dim;
  return form == ConvFactors::separable;
}

}  // namespace spillway::kfac
