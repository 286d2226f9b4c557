/// The removal of repeated entries from a list of parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace spillway {

/// Returns each tensor once, at the place where it was first given. Tied layers' parameters come several times, because
/// LibTorch's C++ modules list a parameter once for every submodule that registered it.
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
