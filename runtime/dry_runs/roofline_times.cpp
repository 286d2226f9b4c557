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

double RooflineTimes::eigh_seconds(int64_t side) const {
  const auto& table = roofline_.eigh_seconds;
  if (table.empty()) return 0;
  const auto n = static_cast<double>(side);
  const auto above = std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first >= side; });
  if (above == table.begin()) return table.front().second * n / static_cast<double>(table.front().first);
  const auto [low, low_seconds] = *std::prev(above);
  const double ratio = n / static_cast<double>(low);
  if (above == table.end()) return low_seconds * std::pow(ratio, 3);
  const double slope = std::log(above->second / low_seconds) / std::log(static_cast<double>(above->first) / low);
  return low_seconds * std::pow(ratio, slope);
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
    return eigh_seconds(side) * product(matrices.sizes()) / (static_cast<double>(side) * static_cast<double>(side));
  }
  const bool convolves = name.starts_with("aten::convolution");
  const double rate = half ? roofline_.half_flops : convolves ? roofline_.convolution_flops : roofline_.matrix_flops;
  return std::max(
      {roofline_.operator_seconds, flops_of(op, arguments) / rate, (bytes + largest) / roofline_.bytes_per_second});
}

}  // namespace spillway::runtime
