/// The properties that window rules ask of tensors before they split them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <vector>

namespace spillway::swap {

/// True for strided elements in memory of the host or a GPU, with nothing lazy or wrapped about them.
bool is_plain_tensor(const at::Tensor& tensor);
/// True for a plain tensor that is contiguous.
bool is_large_layout(const at::Tensor& tensor);

/// True when the tensors share a storage: Tensor::is_alias_of for tensors that may be absent.
inline bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() &&
         a.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             b.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// Returns how many units (planes, channels, …) of `unit_bytes` make a window; at least one.
inline int64_t units_per_window(int64_t window_bytes, int64_t unit_bytes) {
  return std::max<int64_t>(1, window_bytes / std::max<int64_t>(1, unit_bytes));
}

/// Returns the dimensions by falling stride: the order in which the elements lie.
std::vector<int64_t> memory_order(const at::Tensor& part);
/// Returns the strides of a dense tensor with the part's sizes, its elements in the order of the part's.
std::vector<int64_t> packed_strides(const at::Tensor& part);
/// Returns the strides of a contiguous tensor in `format`.
std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format);

/// True when a view of the part begins at an address that kernels treat as they treat a copy's. A GPU's kernels choose
/// by alignment, and so the order of their sums; a view at an odd offset would give other bits than a copy.
bool is_aligned_as_a_copy(const at::Tensor& part, c10::DeviceType device);

/// Makes a tensor for operators that look at an argument's shape alone. On the host it has addresses without memory
/// behind them, which read as zero. On a GPU, where there are no such addresses, it has memory. Throws
/// std::system_error where there are not so many addresses, OutOfBudget.
at::Tensor shape_only_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device);
/// Makes a shape-only tensor that is contiguous in `format`.
at::Tensor shape_only_tensor(at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type, c10::Device device);
/// Makes a shape-only tensor with the part's sizes, type and device. It is dense, its elements in the order of the
/// part's.
at::Tensor shape_only_tensor(const at::Tensor& part);

/// Returns an optional tensor argument; an undefined tensor when there is none.
inline at::Tensor tensor_or_undefined(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace spillway::swap
