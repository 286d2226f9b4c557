#include "core/device/device.h"

#include <array>
#include <atomic>
#include <charconv>

#include "core/device/cpu_device.h"
#include "core/device/cuda_device.h"
#include "core/error.h"

namespace spillway {
namespace {

// LibTorch asks by a storage's device, with nothing else in hand.
constexpr size_t kCards = 64;
std::atomic<Device*> the_cpu = nullptr;
std::array<std::atomic<Device*>, kCards> the_cards{};

std::atomic<Device*>* place_of(c10::Device device) noexcept {
  if (device.is_cpu()) return &the_cpu;
  const auto index = static_cast<size_t>(device.index());
  return device.is_cuda() && index < kCards ? &the_cards[index] : nullptr;
}

}  // namespace

void Device::use_managed_memory(bool use) {
  if (use)
    throw BadRequest(str("the unified engine pages by CUDA's Unified Memory, which ", torch_device_.str(),
                         " does not have; use a card (--device cuda) or the gate engine (--engine gate)"));
}

void Device::install(c10::Allocator* allocator) {
  allocator_ = allocator;
  *place_of(torch_device_) = this;
}

Device* find_device(c10::Device device) noexcept {
  const std::atomic<Device*>* place = place_of(device);
  return place ? place->load(std::memory_order_acquire) : nullptr;
}

Device& open_device(std::string_view name) {
  if (name == "cpu") return CpuDevice::instance();
  if (name == "cuda") return CudaDevice::open(0);
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) {
    int index = -1;
    auto [end, error] = std::from_chars(name.data() + kCuda.size(), name.data() + name.size(), index);
    if (error == std::errc() && end == name.data() + name.size() && index >= 0 && index < static_cast<int>(kCards))
      return CudaDevice::open(index);
  }
  throw BadRequest(str("the device is '", name, "'; allowed is cpu, cuda or cuda:N with N from 0 to ", kCards - 1));
}

}  // namespace spillway
