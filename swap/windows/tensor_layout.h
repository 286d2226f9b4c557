/// What the window rules ask of tensors before they split them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>

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

/// An optional tensor argument; undefined when there is none.
inline at::Tensor tensor_or_undefined(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace spillway
