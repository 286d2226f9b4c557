// The scratch of LibTorch's kernels for the CPU: the tensors that they hold beside their results.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "swap/shapes/shape_rules.h"

namespace spillway::swap {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Tensors = std::vector<at::Tensor>;

/// Returns the sums that each thread keeps of `channels` channels, twice.
at::Tensor sums_of_threads(const at::Tensor& input, int64_t channels) {
  return statistics(input, {2, at::get_num_threads(), channels});
}

Tensors scratch_of_batch_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  return {statistics(input, {input.size(1)}), statistics(input, {input.size(1)})};
}

Tensors scratch_of_batch_norm_backward(Arguments a) {
  const at::Tensor& input = a[1].toTensor();
  if (!input.is_contiguous()) return {sums_of_threads(input, input.size(1))};
  return {at::empty_like(input, input.options().requires_grad(false))};
}

Tensors scratch_of_layer_norm_backward(Arguments a) {
  int64_t width = 1;
  for (int64_t size : a[2].toIntVector()) width *= size;
  return {sums_of_threads(a[1].toTensor(), width)};
}

/// The products, maxima, sums and results of a block of queries and keys, for each thread.
Tensors scratch_of_attention(Arguments a) {
  const at::Tensor& query = a[0].toTensor();
  const int64_t length = query.size(2);
  const int64_t queries = std::min<int64_t>(length, length >= 768 ? 256 : length >= 192 ? 64 : 32);
  const int64_t keys = std::min<int64_t>(a[1].toTensor().size(2), 512);
  return {statistics(query, {at::get_num_threads(), queries * (keys + 2 + query.size(3))})};
}

/// An upper bound of the workspace of LAPACK's xGEQRF and xORGQR, as MKL asks for it.
Tensors scratch_of_qr(Arguments a) {
  const at::Tensor& matrix = a[0].toTensor();
  return {at::empty({18 * matrix.size(-2) + 64 * matrix.size(-1)}, matrix.options().requires_grad(false))};
}

/// The workspace of LAPACK's xSYEVD for one matrix of side n: 1 + 6n + 2n² numbers and 3 + 5n integers.
Tensors scratch_of_eigh(Arguments a) {
  const at::Tensor& matrices = a[0].toTensor();
  const int64_t n = matrices.size(-1);
  const auto options = matrices.options().requires_grad(false);
  return {at::empty({1 + 6 * n + 2 * n * n}, options), at::empty({3 + 5 * n}, options.dtype(at::kInt)),
          at::empty({std::max<int64_t>(1, matrices.numel() / std::max<int64_t>(1, n * n))}, options.dtype(at::kInt))};
}

// upsample_nearest3d(input, output_size, …): for each dimension, the indices of the input's elements
Tensors indices_of_upsampling(Arguments a) {
  Tensors scratch;
  for (int64_t size : a[1].toIntVector()) {
    scratch.push_back(at::empty({size}, at::TensorOptions(at::kLong)));
    scratch.push_back(at::empty({size}, at::TensorOptions(a[0].toTensor().scalar_type())));
  }
  return scratch;
}

/// A number as a tensor, and the same in the type that the operator computes in.
Tensors number_twice(Arguments) {
  return {at::empty({}, at::TensorOptions(at::kDouble)), at::empty({}, at::TensorOptions(at::kFloat))};
}

/// A number for each thread, where threads share a sum that is one number.
Tensors partial_sums(Arguments a, at::ScalarType type) {
  constexpr int64_t kShared = 32768;  // at::internal::GRAIN_SIZE
  const at::Tensor& self = a[0].toTensor();
  if (self.numel() < kShared || at::get_num_threads() == 1) return {};
  int64_t summed = 1;
  if (a.size() == 2 || a[1].isNone() || a[1].toIntVector().empty())
    summed = self.numel();
  else
    for (int64_t dimension : a[1].toIntVector()) summed *= self.size(dimension);
  if (summed < self.numel()) return {};
  return {at::empty({at::get_num_threads()}, at::TensorOptions(type))};
}

// sum(self, …, dtype): the tensor in the type of the sum; integers are added as int64
Tensors as_sums_type(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  at::ScalarType type = self.scalar_type();
  if (a.back().isInt())
    type = static_cast<at::ScalarType>(a.back().toInt());
  else if (at::isIntegralType(type, /*includeBool=*/true))
    type = at::kLong;
  Tensors scratch = partial_sums(a, type);
  if (type != self.scalar_type()) scratch.push_back(at::empty(self.sizes(), self.options().dtype(type)));
  return scratch;
}

// triu(self, diagonal) and tril: a contiguous copy
Tensors contiguous_copy(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  return self.is_contiguous() ? Tensors() : Tensors{at::empty(self.sizes(), self.options().requires_grad(false))};
}

// linalg_vector_norm(self, ord, dim, keepdim, *, dtype): the tensor in the type of the norm
Tensors as_norms_type(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  if (!a[4].isInt() || static_cast<at::ScalarType>(a[4].toInt()) == self.scalar_type()) return {};
  return {at::empty(self.sizes(), self.options().dtype(static_cast<at::ScalarType>(a[4].toInt())))};
}

// cholesky_inverse(self, upper): LAPACK's statuses, and what is made of them to look for one that is not 0
Tensors statuses(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  const int64_t matrices = self.numel() / std::max<int64_t>(1, self.size(-1) * self.size(-2));
  const at::TensorOptions whole(at::kInt);
  return {at::empty({matrices}, whole), at::empty({matrices}, whole), at::empty({}, whole)};
}

// repeat(self, repeats): the order of the dimensions, in the steps in which it is made
Tensors order_of_dimensions(Arguments a) {
  const auto count = static_cast<int64_t>(a[1].toIntVector().size());
  const at::TensorOptions whole(at::kLong);
  return {at::empty({count}, whole), at::empty({count}, whole), at::empty({2 * count}, whole)};
}

constexpr std::pair<std::string_view, ShapeRule> kScratchRules[]{
    {"aten::linalg_vector_norm", as_norms_type},
    {"aten::native_batch_norm", scratch_of_batch_norm},
    {"aten::native_batch_norm_backward", scratch_of_batch_norm_backward},
    {"aten::native_layer_norm_backward", scratch_of_layer_norm_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", scratch_of_attention},
    {"aten::linalg_qr", scratch_of_qr},
    {"aten::_linalg_eigh", scratch_of_eigh},
    {"aten::upsample_nearest3d", indices_of_upsampling},
    {"aten::mean", number_twice},
    {"aten::repeat", order_of_dimensions},
    {"aten::cholesky_inverse", statuses},
    {"aten::sum", as_sums_type},
    {"aten::triu", contiguous_copy},
    {"aten::tril", contiguous_copy},
};

}  // namespace

std::vector<at::Tensor> scratch_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                                   bool on_gpu) {
  if (on_gpu && schema.name() != "aten::linalg_qr" && schema.name() != "aten::_linalg_eigh") return {};
  for (const auto& [name, rule] : kScratchRules)
    if (name == schema.name()) return rule(arguments);
  return {};
}

}  // namespace spillway::swap
