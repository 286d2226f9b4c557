#include "core/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

namespace spillway {
namespace {

void release_block(void* data) {
  if (data) CpuDevice::instance().memory().release(Block::of(data));
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(DeviceMemory& memory) : memory_(memory) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_block, c10::Device(c10::kCPU)};
    return CpuDevice::wrap(memory_.allocate(static_cast<int64_t>(bytes), birth_category()));
  }
  // raw_allocate demands that the context is the data pointer, so the descriptor is found in front of the data.
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  DeviceMemory& memory_;
};

}  // namespace

CpuDevice& CpuDevice::instance() {
  static auto* device = new CpuDevice();
  return *device;
}

CpuDevice::CpuDevice()
    : arena_(default_arena_bytes()),
      ledger_("cpu"),
      memory_(arena_, ledger_),
      allocator_(new CountingAllocator(memory_)) {
  c10::SetCPUAllocator(allocator_, /*priority=*/255);
}

Block* CpuDevice::block_of(const c10::DataPtr& data) {
  return data.get() && data.get_deleter() == &release_block ? Block::of(data.get_context()) : nullptr;
}

c10::DataPtr CpuDevice::wrap(Block* block) {
  return {block->data, block->data, &release_block, c10::Device(c10::kCPU)};
}

}  // namespace spillway
