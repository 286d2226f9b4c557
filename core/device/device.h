/// A device whose tensors can be paged: the seam between LibTorch's memory and the pager.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>
#include <string_view>

#include "core/compute_clock.h"
#include "core/memory/device_memory.h"
#include "core/memory/memory_range.h"
#include "core/timeline.h"

namespace spillway {

/// GPUs have numbers below this.
inline constexpr int kMaxGpus = 64;

/// Counts the memory of all tensors on one device. LibTorch keeps pointers to allocators for ever, so a device lives
/// from its first use to the end of the process.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  c10::Device torch_device() const noexcept { return torch_device_; }
  Ledger& ledger() noexcept { return ledger_; }
  DeviceMemory& memory() noexcept { return memory_; }
  const DeviceMemory& memory() const noexcept { return memory_; }
  /// LibTorch's allocator for the device, which counts.
  c10::Allocator* allocator() noexcept { return allocator_; }

  /// The block behind a storage of this allocator; nullptr for memory that came from elsewhere, or that is absent.
  virtual Block* find_block(const c10::DataPtr& data) const = 0;
  /// Wraps a block for a storage; the storage's end releases the block.
  virtual c10::DataPtr wrap_block(Block* block) = 0;
  /// Whether LibTorch's own allocator made this memory, so that it can be replaced by counted memory.
  virtual bool is_uncounted(const c10::DataPtr& data) const = 0;
  /// Copies within the device's memory, in the order of its operators.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Memory of the host that the device copies from and to at full speed. At most `capacity_bytes`, perhaps less.
  virtual MemoryRange reserve_host_memory(int64_t capacity_bytes) = 0;
  /// Whether tensors of 64 KiB and more that are born from now on get managed memory, whose blocks stay. Throws
  /// BadRequest where there is no such memory.
  virtual void use_managed_memory(bool use);
  /// A copy lane between the device and the memory reserved last, beside the operators of the calling thread.
  virtual std::unique_ptr<Timeline> make_timeline(std::string_view lane) = 0;
  /// nullptr where the host sees how long operators take.
  virtual std::unique_ptr<ComputeClock> make_clock() { return nullptr; }
  /// Charges what the device holds beside tensors now. Throws OutOfBudget when no room can be made for it.
  virtual void charge_external() {}

 protected:
  Device(c10::Device torch_device, Arena& arena)
      : torch_device_(torch_device), ledger_(torch_device.str()), memory_(arena, ledger_) {}
  Device(c10::Device torch_device, BlockSource& blocks)
      : torch_device_(torch_device), ledger_(torch_device.str()), memory_(blocks, ledger_) {}
  /// From now on find_device() finds it. LibTorch must have been given `allocator`.
  void install(c10::Allocator* allocator);

 private:
  const c10::Device torch_device_;
  Ledger ledger_;
  DeviceMemory memory_;
  c10::Allocator* allocator_ = nullptr;
};

/// The device that counts this memory's; nullptr when none does. Cost: a load.
Device* find_device(c10::Device device) noexcept;

/// The counted block behind a storage on whatever device; nullptr for other memory, or that is absent.
inline Block* block_behind(const c10::DataPtr& data) {
  const Device* device = find_device(data.device());
  return device ? device->find_block(data) : nullptr;
}

}  // namespace spillway
