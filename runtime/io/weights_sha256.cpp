#include "runtime/io/weights_sha256.h"

#include <ATen/ATen.h>

#include <map>

#include "runtime/io/sha256.h"
#include "swap/session.h"

namespace spillway::runtime {

std::string weights_sha256(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& p : module.named_parameters()) tensors.emplace(p.key(), p.value());
  for (const auto& b : module.named_buffers()) tensors.emplace(b.key(), b.value());

  Sha256 sha;
  for (const auto& [name, tensor] : tensors) {
    at::Tensor dense = tensor.detach().cpu().contiguous();
    auto lent = resident_read(dense);
    sha.add(dense.const_data_ptr(), dense.nbytes());
  }
  return hex(sha.finish());
}

}  // namespace spillway::runtime
