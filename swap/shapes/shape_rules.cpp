#include "swap/shapes/shape_rules.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "swap/shapes/convolution_scratch.h"

namespace spillway::swap {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Tensors = std::vector<at::Tensor>;

at::Tensor like(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options().requires_grad(false));
}

at::Tensor contiguous_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

/// Returns a tensor like the argument at `index`; undefined where `wanted` is false or the argument is.
at::Tensor like(Arguments a, size_t index, bool wanted = true) {
  const at::Tensor& tensor = a[index].isTensor() ? a[index].toTensor() : at::Tensor();
  return wanted && tensor.defined() ? like(tensor) : at::Tensor();
}

std::vector<bool> mask(Arguments a, size_t index) {
  const auto list = a[index].toBoolList();
  return {list.begin(), list.end()};
}

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.suggest_memory_format() != at::MemoryFormat::Contiguous;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Tensors convolution(Arguments a) {
  const Convolution convolution(a, 0, 3);
  return {allocate_output(convolution, is_channels_last(convolution.input) || is_channels_last(convolution.weight),
                          a[2].isTensor() && a[2].toTensor().defined())};
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
//                      groups, output_mask)
Tensors convolution_backward(Arguments a) {
  const Convolution convolution(a, 1, 4);
  return allocate_gradients(convolution, is_channels_last(convolution.input), mask(a, 10));
}

Tensors convolution_on_gpu(Arguments a) {
  const Convolution convolution(a, 0, 3);
  at::TensorOptions options = convolution.input.options().requires_grad(false);
  for (const at::Tensor& tensor : {convolution.input, convolution.weight})
    if (is_channels_last(tensor)) options = options.memory_format(tensor.suggest_memory_format());
  return {at::empty(convolution.output_sizes(), options)};
}

Tensors convolution_backward_on_gpu(Arguments a) {
  const Convolution convolution(a, 1, 4);
  const auto wanted = mask(a, 10);
  Tensors gradients{like(a, 1, wanted[0]), like(a, 2, wanted[1]), at::Tensor()};
  if (wanted[2])
    gradients[2] = at::empty({convolution.output_sizes()[1]}, convolution.input.options().requires_grad(false));
  return gradients;
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
Tensors batch_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const int64_t kept = a[5].toBool() ? input.size(1) : 0;
  return {like(input), statistics(input, {kept}), statistics(input, {kept})};
}

// native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
//                            output_mask)
Tensors batch_norm_backward(Arguments a) {
  const auto wanted = mask(a, 9);
  const at::Tensor& input = a[1].toTensor();
  Tensors results{like(a, 1, wanted[0])};
  for (size_t i : {1, 2}) results.push_back(wanted[i] ? statistics(input, {input.size(1)}) : at::Tensor());
  return results;
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
Tensors group_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const int64_t samples = a[3].toInt(), groups = a[6].toInt();
  return {like(input), statistics(input, {samples, groups}), statistics(input, {samples, groups})};
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask)
Tensors group_norm_backward(Arguments a) {
  const auto wanted = mask(a, 9);
  return {like(a, 1, wanted[0]), like(a, 4, wanted[1]), like(a, 4, wanted[2])};
}

// native_layer_norm(input, normalized_shape, weight, bias, eps)
Tensors layer_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  std::vector<int64_t> sizes = input.sizes().vec();
  for (size_t d = sizes.size() - a[1].toIntVector().size(); d < sizes.size(); ++d) sizes[d] = 1;
  return {contiguous_like(input), statistics(input, sizes), statistics(input, sizes)};
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
Tensors layer_norm_backward(Arguments a) {
  const auto wanted = mask(a, 7);
  return {like(a, 1, wanted[0]), like(a, 5, wanted[1]), like(a, 6, wanted[2])};
}

/// Returns entry `d` of a list that has one entry for all dimensions, or one for each.
int64_t entry(const std::vector<int64_t>& list, size_t d) {
  return list.size() == 1 ? list[0] : list[d];
}

// max_pool3d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode), and in 2 dimensions
Tensors max_pool(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const auto kernel = a[1].toIntVector(), padding = a[3].toIntVector(), dilation = a[4].toIntVector();
  const auto stride = a[2].toIntVector().empty() ? kernel : a[2].toIntVector();
  std::vector<int64_t> sizes = input.sizes().vec();
  const size_t spatial = a[5].isBool() && input.dim() > 3 ? static_cast<size_t>(input.dim()) - 2 : kernel.size();
  for (size_t d = 0; d < spatial; ++d) {
    int64_t& size = sizes[sizes.size() - spatial + d];
    const int64_t last = size + 2 * entry(padding, d) - entry(dilation, d) * (entry(kernel, d) - 1) - 1;
    const int64_t step = entry(stride, d), rounded = a[5].toBool() ? last + step - 1 : last;
    const int64_t before = size;
    size = rounded / step + 1;
    if (a[5].toBool() && (size - 1) * step >= before + entry(padding, d)) --size;  // no window begins in the padding
  }
  const auto format = input.suggest_memory_format();
  const auto options = input.options().requires_grad(false).memory_format(format);
  return {at::empty(sizes, options), at::empty(sizes, options.dtype(at::kLong))};
}

// max_pool3d_with_indices_backward(grad_output, self, …)
Tensors like_second(Arguments a) {
  return {like(a, 1)};
}

// where(condition, self, other)
Tensors where(Arguments a) {
  const at::Tensor &condition = a[0].toTensor(), &self = a[1].toTensor(), &other = a[2].toTensor();
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return {at::empty(sizes, at::TensorOptions(at::result_type(self, other)))};
}

// index_select(self, dim, index)
Tensors index_select(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[c10::maybe_wrap_dim(a[1].toInt(), self.dim())] = a[2].toTensor().numel();
  return {at::empty(sizes, self.options().requires_grad(false))};
}

// log_sigmoid_forward(self): the result, and a buffer for backward
Tensors log_sigmoid(Arguments a) {
  return {contiguous_like(a[0].toTensor()), contiguous_like(a[0].toTensor())};
}

// max(self) without a dimension, and min
Tensors scalar_like(Arguments a) {
  return {at::empty({}, a[0].toTensor().options().requires_grad(false))};
}

// nll_loss2d_forward(self, target, weight, reduction, ignore_index): the loss, and the sum of the weights
Tensors nll_loss2d(Arguments a) {
  const at::Tensor &self = a[0].toTensor(), &target = a[1].toTensor();
  const auto options = self.options().requires_grad(false);
  const bool is_reduced = a[3].toInt() != at::Reduction::None;
  return {is_reduced ? at::empty({}, options) : at::empty(target.sizes(), options), at::empty({}, options)};
}

// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
Tensors embedding_backward(Arguments a) {
  const at::Tensor& grad = a[0].toTensor();
  return {at::empty({a[2].toInt(), grad.size(-1)}, grad.options().requires_grad(false))};
}

// _scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, *, attn_mask, scale)
Tensors attention(Arguments a) {
  const at::Tensor& query = a[0].toTensor();
  const auto sizes = query.sizes();  // [batch, heads, length, width]
  const auto options = query.options().requires_grad(false);
  return {at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options).transpose(1, 2),
          statistics(query, {sizes[0], sizes[2], sizes[1]}).transpose(1, 2)};
}

// _scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, …)
Tensors attention_backward(Arguments a) {
  Tensors results;
  for (size_t i : {1, 2, 3}) {
    const auto sizes = a[i].toTensor().sizes();
    const auto options = a[i].toTensor().options().requires_grad(false);
    results.push_back(at::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options).transpose(1, 2));
  }
  return results;
}

// _linalg_check_errors(info, …) reads LAPACK's statuses, which nobody wrote
Tensors nothing(Arguments) {
  return {};
}

// cholesky_inverse(self, upper): an inverse in the order of LAPACK, column by column
Tensors cholesky_inverse(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  return {at::empty(self.sizes(), self.options().requires_grad(false)).transpose(-2, -1)};
}

// repeat(self, repeats); its own kernel reads the order of dimensions from a tensor
Tensors repeat(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  std::vector<int64_t> sizes = a[1].toIntVector();
  const size_t added = sizes.size() - self.dim();
  for (size_t d = added; d < sizes.size(); ++d) sizes[d] *= self.size(d - added);
  return {at::empty(sizes, self.options().requires_grad(false))};
}

/// Rules by name and overload, because overloads have other results.
constexpr std::pair<std::string_view, ShapeRule> kRules[]{
    {"aten::_linalg_check_errors", nothing},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"aten::dot", scalar_like},
    {"aten::nll_loss2d_forward", nll_loss2d},
    {"aten::nll_loss2d_backward", like_second},
    {"aten::embedding_dense_backward", embedding_backward},
    {"aten::max", scalar_like},
    {"aten::min", scalar_like},
    {"aten::max_pool3d_with_indices", max_pool},
    {"aten::max_pool3d_with_indices_backward", like_second},
    {"aten::where.self", where},
    {"aten::index_select", index_select},
    {"aten::repeat", repeat},
    {"aten::cholesky_inverse", cholesky_inverse},
    {"aten::log_sigmoid_forward", log_sigmoid},
    {"aten::log_sigmoid_backward", like_second},
    {"aten::convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::native_batch_norm", batch_norm},
    {"aten::native_batch_norm_backward", batch_norm_backward},
    {"aten::native_group_norm", group_norm},
    {"aten::native_group_norm_backward", group_norm_backward},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
};

}  // namespace

at::Tensor statistics(const at::Tensor& input, at::IntArrayRef size) {
  const bool half = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  return at::empty(size, at::TensorOptions(half ? at::kFloat : input.scalar_type()));
}

ShapeRule shape_rule_of(const c10::FunctionSchema& schema, bool on_gpu) {
  if (on_gpu && schema.name() == "aten::convolution") return convolution_on_gpu;
  if (on_gpu && schema.name() == "aten::convolution_backward") return convolution_backward_on_gpu;
  const std::string& overload = schema.overload_name();
  const std::string full = overload.empty() ? schema.name() : schema.name() + "." + overload;
  for (const auto& [name, rule] : kRules)
    if (name == full) return rule;
  return nullptr;
}

}  // namespace spillway::swap
