#include "runtime/dry_runs/roofline_times.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "swap/shapes/map_tensors.h"
#include "swap/windows/convolution.h"

namespace spillway::runtime {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

double product(at::IntArrayRef sizes) {
  double count = 1;
  for (int64_t size : sizes) count *= static_cast<double>(size);
  return count;
}

/// Returns the operations of a product of (batches of) matrices: two for each element of the first one and column of
/// the second one.
double matmul_flops(const at::Tensor& left, const at::Tensor& right) {
  return 2 * product(left.sizes()) * static_cast<double>(right.size(-1));
}

double convolution_flops(Arguments arguments, size_t input, size_t first) {
  const swap::Convolution conv(arguments, input, first);
  const std::vector<int64_t> sizes = conv.transposed ? conv.input.sizes().vec() : conv.output_sizes();
  return 2 * product(sizes) / static_cast<double>(sizes[1]) * product(conv.weight.sizes());
}

/// Returns the share of the rate of many channels that a convolution of weight [out, in of a group, …] has.
double share_of_rate(const at::Tensor& weight, int64_t groups, double many_channels) {
  if (many_channels == 0) return 1;
  const auto out = static_cast<double>(weight.size(0)) / static_cast<double>(groups);
  const double channels = std::sqrt(out * static_cast<double>(weight.size(1)));
  return std::min(1.0, std::pow(channels / many_channels, 1.5));
}

/// Returns the operations of the gradients that are wanted: each takes as many as the convolution.
double convolution_backward_flops(Arguments arguments) {
  const std::vector<bool> wanted = arguments.back().toBoolList().vec();
  return convolution_flops(arguments, 1, 4) * (wanted[0] + wanted[1]);
}

double bytes_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
}

}  // namespace

double flops_of(const c10::OperatorHandle& op, Arguments arguments) {
  const std::string& name = op.schema().name();
  const auto tensor = [&](size_t a) { return arguments[a].toTensor(); };
  if (name == "aten::mm" || name == "aten::bmm") return matmul_flops(tensor(0), tensor(1));
  if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm" || name == "aten::baddbmm_")
    return matmul_flops(tensor(1), tensor(2));
  if (name == "aten::convolution") return convolution_flops(arguments, 0, 3);
  if (name == "aten::convolution_backward") return convolution_backward_flops(arguments);
  const bool is_attention = name.starts_with("aten::_scaled_dot_product");
  // Backward makes the products of forward once more, and two gradients of each.
  if (is_attention && name.ends_with("backward")) return 5 * matmul_flops(tensor(1), tensor(2).transpose(-1, -2));
  if (is_attention) return 2 * matmul_flops(tensor(0), tensor(1).transpose(-1, -2));
  return 0;
}

double RooflineTimes::gap_seconds(const c10::OperatorHandle& op) const {
  const std::string& name = op.schema().name();
  const bool calls_library = name.starts_with("aten::convolution") || name.starts_with("aten::native_batch_norm");
  return calls_library ? rates_.library_gap_seconds : rates_.gap_seconds;
}

double RooflineTimes::seconds(const c10::OperatorHandle& op, Arguments arguments) {
  const std::string& name = op.schema().name();
  double bytes = 0, largest = 0;
  bool half = false;
  for (const c10::IValue& value : arguments)
    swap::map_tensors(value, [&](const at::Tensor& tensor) {
      bytes += bytes_of(tensor);
      largest = std::max(largest, bytes_of(tensor));
      half |= tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
      return tensor;
    });
  if (name == "aten::_linalg_eigh") {
    const at::Tensor& matrices = arguments[0].toTensor();
    const int64_t side = matrices.size(-1);
    const double count = product(matrices.sizes()) / (static_cast<double>(side) * static_cast<double>(side));
    return std::max(rates_.operator_seconds, count * decomposition_seconds(rates_, side));
  }
  double rate = half ? rates_.half_flops : rates_.matrix_flops;
  if (name.starts_with("aten::convolution")) {
    const bool is_backward = name == "aten::convolution_backward";
    const swap::Convolution conv(arguments, is_backward, is_backward ? 4 : 3);
    rate = half ? rate : rates_.convolution_flops;
    rate *= share_of_rate(conv.weight, conv.groups, rates_.convolution_channels);
  }
  return std::max(
      {rates_.operator_seconds, flops_of(op, arguments) / rate, (bytes + largest) / rates_.bytes_per_second});
}

}  // namespace spillway::runtime
