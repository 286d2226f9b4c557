#include "runtime/interruption/step_snapshot.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>

#include "core/out_of_memory.h"

namespace spillway::runtime {
namespace {

/// Returns a copy on the host. Memory of its own, because tensors that LibTorch's allocator makes are counted.
at::Tensor host_copy(const at::Tensor& buffer) {
  const at::TensorOptions type(buffer.scalar_type());
  if (buffer.is_cuda()) return at::empty(buffer.sizes(), type.pinned_memory(true)).copy_(buffer, /*non_blocking=*/true);
  auto bytes = naming_who_allocates("the copy of a module's buffer", static_cast<int64_t>(buffer.nbytes()),
                                    [&] { return std::make_shared<std::vector<std::byte>>(buffer.nbytes()); });
  return at::from_blob(
             bytes->data(), buffer.sizes(), [bytes](void*) {}, type)
      .copy_(buffer);
}

}  // namespace

StepSnapshot::StepSnapshot(const torch::nn::Module& module, c10::Device device) : random_(device) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : module.buffers()) buffers_.emplace_back(buffer, host_copy(buffer));
}

void StepSnapshot::restore() const {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, copy] : buffers_) buffer.copy_(copy, /*non_blocking=*/true);
  random_.restore();
}

}  // namespace spillway::runtime
