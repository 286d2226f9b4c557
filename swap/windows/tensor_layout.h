/// What the window rules ask of tensors before they split them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <vector>

namespace spillway {

/// Strided elements in memory of the host or a card, and nothing lazy or wrapped about them.
bool is_plain_tensor(const at::Tensor& tensor);
/// The same, and contiguous.
bool is_large_layout(const at::Tensor& tensor);

/// Tensor::is_alias_of for tensors that may be absent.
inline bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() &&
         a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// How many units (planes, channels, …) of `unit_bytes` make a window; at least one.
inline int64_t units_per_window(int64_t window_bytes, int64_t unit_bytes) {
  return std::max<int64_t>(1, window_bytes / std::max<int64_t>(1, unit_bytes));
}

/// Dimensions by falling stride: the order in which the elements lie.
std::vector<int64_t> memory_order(const at::Tensor& part);
/// Strides of a dense tensor with the part's sizes, its elements in the order of the part's.
std::vector<int64_t> packed_strides(const at::Tensor& part);
/// Strides of a contiguous tensor in `format`.
std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format);

/// Makes a tensor for operators that look at an argument's shape alone: addresses without memory behind them, which
/// read as zero; on a GPU, where there are no such, memory. Throws std::system_error where there are not so many
/// addresses, OutOfBudget.
at::Tensor shape_alone(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device);
/// Makes such a tensor, contiguous in `format`.
at::Tensor shape_alone(at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type, c10::Device device);
/// Makes such a tensor with the part's sizes, type and device, dense, its elements in the order of the part's.
at::Tensor shape_alone(const at::Tensor& part);

/// An optional tensor argument; undefined when there is none.
inline at::Tensor tensor_or_undefined(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace spillway
