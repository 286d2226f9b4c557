/// LibTorch's CPU allocator on top of a DeviceMemory, which counts every CPU tensor of the process.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include "core/device/device.h"

namespace spillway {

/// The process's CPU as a budgeted device. It lives from the first use to the end of the process, because LibTorch
/// keeps a raw pointer to its CPU allocator forever. It is one of the process-wide exceptions that LibTorch forces.
class CpuDevice final : public Device {
 public:
  /// Returns the device. The first call installs the counting allocator in LibTorch. Tensors that exist already keep
  /// their memory, which is not counted. Thread-safe.
  static CpuDevice& instance();
  /// Makes the first call of instance() reserve 16 TiB of addresses, instead of twice the machine's memory: for tensors
  /// that nobody touches. Without effect after that call.
  static void reserve_addresses_of_dry_runs();

  /// Returns the same block as find_block(), without needing the device.
  static Block* block_of(const c10::DataPtr& data);
  static c10::DataPtr wrap(Block* block);

  Block* find_block(const c10::DataPtr& data) const override { return block_of(data); }
  c10::DataPtr wrap_block(Block* block) override { return wrap(block); }
  bool is_uncounted(const c10::DataPtr& data) const override;
  void copy(void* to, const void* from, int64_t bytes) override;
  MemoryRange reserve_host_memory(int64_t capacity_bytes) override;
  std::unique_ptr<Timeline> make_timeline(std::string_view lane) override;

 private:
  explicit CpuDevice(Arena& arena) : Device(c10::Device(c10::kCPU), arena) {}
};

}  // namespace spillway
