/// Parameters that are listed more than once.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace spillway {

/// Each tensor once, where it was first given. LibTorch's C++ modules list a parameter once for every submodule that
/// registered it, so that tied layers' parameters come several times.
inline std::vector<at::Tensor> distinct_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<const c10::TensorImpl*> known;
  std::vector<at::Tensor> kept;
  for (const at::Tensor& tensor : tensors) {
    const auto* impl = tensor.unsafeGetTensorImpl();
    const auto place = std::lower_bound(known.begin(), known.end(), impl);
    if (place != known.end() && *place == impl) continue;
    known.insert(place, impl);
    kept.push_back(tensor);
  }
  return kept;
}

}  // namespace spillway
