#include "core/device/device.h"

#include <array>
#include <atomic>

#include "core/error.h"
#include "core/memory/fork.h"

namespace spillway {
namespace {

// The devices are global, because LibTorch passes nothing but a storage's device.
std::atomic<Device*> the_cpu = nullptr;
std::array<std::atomic<Device*>, kMaxGpus> the_gpus{};

std::atomic<Device*>* place_of(c10::Device device) noexcept {
  if (device.is_cpu()) return &the_cpu;
  if (!device.is_cuda() || device.index() < 0 || device.index() >= kMaxGpus) return nullptr;
  return &the_gpus[device.index()];
}

}  // namespace

void Device::use_managed_memory(bool use) {
  if (use)
    throw BadRequest(str("the unified engine pages by CUDA's Unified Memory, which ", torch_device_.str(),
                         " does not have; use a GPU (--device cuda) or the gate engine (--engine gate)"));
}

void Device::install(c10::Allocator* allocator) {
  survive_forks(memory_);
  allocator_ = allocator;
  *place_of(torch_device_) = this;
}

Device* find_device(c10::Device device) noexcept {
  const std::atomic<Device*>* place = place_of(device);
  return place ? place->load(std::memory_order_acquire) : nullptr;
}

}  // namespace spillway
