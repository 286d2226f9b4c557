#include "core/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "core/topology.h"

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
  static CpuDevice& device = [&]() -> CpuDevice& {
    auto* cpu = new CpuDevice(*new Arena(default_arena_bytes()));
    auto* allocator = new CountingAllocator(cpu->memory());
    cpu->install(allocator);
    c10::SetCPUAllocator(allocator, /*priority=*/255);
    return *cpu;
  }();
  return device;
}

bool CpuDevice::is_uncounted(const c10::DataPtr& data) const {
  return data.get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
}

void CpuDevice::copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Near the CPUs that this thread may use.
MemoryRange CpuDevice::reserve_host_memory(int64_t capacity_bytes) {
  MemoryRange range = reserve_memory(capacity_bytes);
  prefer_numa_nodes(range.data(), range.bytes(), numa_nodes_near(cpus_of_this_thread()));
  return range;
}

std::unique_ptr<Timeline> CpuDevice::make_timeline(std::string_view lane) {
  return std::make_unique<WorkerTimeline>(std::string(lane));
}

Block* CpuDevice::block_of(const c10::DataPtr& data) {
  return data.get() && data.get_deleter() == &release_block ? Block::of(data.get_context()) : nullptr;
}

c10::DataPtr CpuDevice::wrap(Block* block) {
  return {block->data, block->data, &release_block, c10::Device(c10::kCPU)};
}

}  // namespace spillway
