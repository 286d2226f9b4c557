#include "core/device/cpu_device.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "core/host/host_topology.h"

namespace spillway {
namespace {

constexpr int64_t kAddressesOfDryRuns = int64_t{16} << 40;

std::atomic<bool> is_for_dry_runs = false;

void release_block(void* data) {
  if (data) CpuDevice::instance().memory().release(Block::of(data));
}

/// Returns true when CountingAllocator handed the memory out. The bytes in front of another allocator's block are no
/// descriptor, but can be read. LibTorch's blocks are aligned to 64 bytes and lie behind a header of malloc's.
[[gnu::no_sanitize("address")]] bool is_block(void* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Block) == 0 && Block::of(data)->data == data;
}

/// Releases memory for raw_deallocate(). oneDNN calls that also for memory that it may have taken before this allocator
/// was installed.
void release_raw(void* data) {
  if (!data || is_block(data)) return release_block(data);
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(DeviceMemory& memory) : memory_(memory) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_block, c10::Device(c10::kCPU)};
    return CpuDevice::wrap(memory_.allocate(bytes, birth_category()));
  }
  // The descriptor is found in front of the data, because raw_allocate demands that the context is the data pointer.
  c10::DeleterFnPtr raw_deleter() const override { return &release_raw; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  DeviceMemory& memory_;
};

}  // namespace

void CpuDevice::reserve_addresses_of_dry_runs() {
  is_for_dry_runs = true;
}

CpuDevice& CpuDevice::instance() {
  static CpuDevice& device = [&]() -> CpuDevice& {
    const int64_t bytes = is_for_dry_runs ? kAddressesOfDryRuns : default_arena_bytes();
    MemoryRange range = reserve_memory_up_to(bytes);
    // Only the descriptor in front of each tensor is touched then, and huge pages would clear 2 MiB for each.
    if (is_for_dry_runs) ::madvise(range.data(), range.bytes(), MADV_NOHUGEPAGE);
    auto* cpu = new CpuDevice(*new Arena(std::move(range), bytes));
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
  std::memcpy(to, from, bytes);
}

/// Reserves host memory near the CPUs that this thread may use.
MemoryRange CpuDevice::reserve_host_memory(int64_t capacity_bytes) {
  MemoryRange range = reserve_memory_up_to(capacity_bytes);
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
