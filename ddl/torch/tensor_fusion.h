/// The rules by which the operators cut lists of tensors into calls.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <string>

#include "core/hash.h"
#include "ddl/comm/agreement.h"

namespace spillway::ddl {

/// The maximum bytes of tensors that are fused into one operator call. They are enough that a message's latency no
/// longer matters, and little beside any budget. A larger tensor travels alone, in place on the CPU.
inline constexpr int64_t kFusionBytes = int64_t{8} << 20;

/// Returns a hash of types, sizes and strides, which must be alike on every rank for the bytes to mean the same. The
/// strides of dimensions of size 1, and of tensors without elements, say nothing, so they do not count.
inline uint64_t signature_of(at::TensorList tensors) {
  uint64_t hash = hash_in(kHashSeed, tensors.size());
  for (const at::Tensor& tensor : tensors) {
    hash = hash_in(hash, tensor.scalar_type());
    hash = hash_in(hash, tensor.dim());
    for (const int64_t size : tensor.sizes()) hash = hash_in(hash, size);
    if (tensor.numel() == 0) continue;
    for (int64_t d = 0; d < tensor.dim(); ++d)
      if (tensor.size(d) != 1) hash = hash_in(hash, tensor.stride(d));
  }
  return hash;
}

/// Returns what a message says of the order in memory, `with strides [1, 3]`: that of the first tensor that is not
/// contiguous. Empty where all are.
inline std::string layout_of(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors)
    if (!tensor.is_contiguous()) return c10::str("with strides ", tensor.strides());
  return "";
}

/// Calls `on_group` for consecutive tensors of one type, of at most kFusionBytes together, or one larger tensor.
void for_each_group(at::TensorList tensors, auto on_group) {
  size_t begin = 0;
  while (begin < tensors.size()) {
    size_t end = begin + 1;
    int64_t bytes = tensors[begin].nbytes();
    while (end < tensors.size() && tensors[end].scalar_type() == tensors[begin].scalar_type() &&
           bytes + static_cast<int64_t>(tensors[end].nbytes()) <= kFusionBytes) {
      bytes += tensors[end++].nbytes();
    }
    on_group(tensors.slice(begin, end - begin));
    begin = end;
  }
}

inline int64_t total_bytes(at::TensorList tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Tells the version counters of a write that autograd does not see, so that a tensor saved for backward is found
/// changed.
inline void bump_versions(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace spillway::ddl
