#include "runtime/interruption/step_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace spillway {
namespace {

at::Tensor on_host(std::vector<std::byte>& bytes, const at::Tensor& like) {
  return at::from_blob(bytes.data(), like.sizes(), at::TensorOptions(like.scalar_type()));
}

}  // namespace

StepSnapshot::StepSnapshot(const torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : module.buffers()) {
    buffers_.emplace_back(buffer, std::vector<std::byte>(buffer.nbytes()));
    on_host(buffers_.back().second, buffer).copy_(buffer);
  }
  std::vector<at::Generator> live{at::detail::getDefaultCPUGenerator()};
  if (device.is_cuda()) live.push_back(at::globalContext().defaultGenerator(device));
  for (at::Generator& generator : live) {
    const std::lock_guard lock(generator.mutex());
    generators_.emplace_back(generator, generator.clone());
  }
}

void StepSnapshot::restore() {
  const at::NoGradGuard no_grad;
  for (auto& [buffer, bytes] : buffers_) buffer.copy_(on_host(bytes, buffer));
  for (auto& [generator, copy] : generators_) {
    const at::Tensor state = copy.get_state();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace spillway
