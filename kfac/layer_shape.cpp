#include "kfac/layer_shape.h"

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
  const FactorShape output{FactorRole::output, out / groups};
  if (!separable) return {{FactorRole::input, input_side()}, output};
  return {{FactorRole::channels, in / groups}, {FactorRole::offsets, kernel_volume()}, output};
}

int64_t LayerShape::gradient_elements() const {
  return out * (in / groups * kernel_volume() + (bias ? 1 : 0));
}

int64_t factor_elements(const LayerShape& layer) {
  int64_t sum = 0;
  for (const auto& factor : layer.factors()) sum += layer.groups * factor.side * factor.side;
  return sum;
}

int64_t InverseTensor::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<InverseTensor> inverse_tensors(const LayerShape& layer) {
  const auto factors = layer.factors();
  const bool eigen = layer.inverse.method == Method::eigen;
  std::vector<InverseTensor> tensors;
  for (size_t f = 0; f < factors.size(); ++f) {
    const std::string number = std::to_string(f);
    const int64_t side = factors[f].side;
    tensors.push_back({(eigen ? "vectors" : "inverse") + number, {layer.groups, side, side}, f});
    if (eigen && !layer.inverse.precompute_outer) tensors.push_back({"values" + number, {layer.groups, side}, f});
  }
  if (layer.inverse.precompute_outer)
    tensors.push_back({"reciprocal", {layer.groups, layer.out / layer.groups, layer.input_side()}, factors.size() - 1});
  return tensors;
}

int64_t eigenbasis_elements(const LayerShape& layer) {
  int64_t sum = 0;
  for (const auto& tensor : inverse_tensors(layer)) sum += tensor.elements();
  return sum;
}

double decomposition_cost(const LayerShape& layer, const FactorShape& factor) {
  const auto side = static_cast<double>(factor.side);
  return static_cast<double>(layer.groups) * side * side * side;
}

double decomposition_flops(const LayerShape& layer, const FactorShape& factor) {
  return (layer.inverse.method == Method::eigen ? 9 : 1) * decomposition_cost(layer, factor);
}

double precondition_flops(const LayerShape& layer) {
  double sides = 0;
  for (const auto& factor : layer.factors()) sides += static_cast<double>(factor.side);
  const double each = layer.inverse.method == Method::eigen ? 4 : 2;
  return each * static_cast<double>(layer.gradient_elements()) * sides;
}

bool is_separable(const LayerShape& layer, ConvFactors form, int64_t max_factor_dim) {
  if (layer.kernel_volume() <= 1 || layer.in / layer.groups <= 1) return false;
  if (form == ConvFactors::automatic) return layer.input_side() > max_factor_dim;
  return form == ConvFactors::separable;
}

}  // namespace spillway::kfac
