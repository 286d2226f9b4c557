/// A device whose tensors can be paged: the interface between LibTorch's memory and the pager.
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

/// The limit of GPU numbers: all are below it.
inline constexpr int kMaxGpus = 64;

/// Counts the memory of all tensors on one device. A device lives from its first use to the end of the process, because
/// LibTorch keeps pointers to allocators forever.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  c10::Device torch_device() const noexcept { return torch_device_; }
  Ledger& ledger() noexcept { return ledger_; }
  DeviceMemory& memory() noexcept { return memory_; }
  const DeviceMemory& memory() const noexcept { return memory_; }
  /// Returns LibTorch's allocator for the device, which counts.
  c10::Allocator* allocator() noexcept { return allocator_; }

  /// Returns the block behind a storage of this allocator; nullptr for memory from elsewhere, or absent memory.
  virtual Block* find_block(const c10::DataPtr& data) const = 0;
  /// Wraps a block for a storage. The storage's destruction releases the block.
  virtual c10::DataPtr wrap_block(Block* block) = 0;
  /// Returns true when LibTorch's own allocator made this memory, so that it can be replaced by counted memory.
  virtual bool is_uncounted(const c10::DataPtr& data) const = 0;
  /// Copies within the device's memory, in the order of its operators.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Reserves host memory that the device copies from and to at full speed. Reserves at most `capacity_bytes`, perhaps
  /// less.
  virtual MemoryRange reserve_host_memory(int64_t capacity_bytes) = 0;
  /// Selects managed memory, or ordinary memory, for tensors of 64 KiB and more that are allocated from now on. Managed
  /// blocks stay with their owners while their bytes move. Throws BadRequest where there is no managed memory.
  virtual void use_managed_memory(bool use);
  /// Makes a copy lane between the device and the host memory reserved last. The lane runs in parallel with the
  /// operators of the calling thread.
  virtual std::unique_ptr<Timeline> make_timeline(std::string_view lane) = 0;
  /// Makes a clock for the device's operators. Returns nullptr where the host can itself measure how long operators
  /// take.
  virtual std::unique_ptr<ComputeClock> make_clock() { return nullptr; }
  /// Throws std::runtime_error where the calling thread's operators of this device would not run in the order of the
  /// device's copies: on another stream of a GPU than the Session's, and while a CUDA graph captures them, because the
  /// graph would keep addresses of tensors that move. Does nothing on other devices. Call it before each operator.
  virtual void require_compute_order() const {}
  /// Notes what the device holds beside tensors, as a step begins: other processes' memory is in it. Thread-safe; steps
  /// of several threads may overlap.
  virtual void begin_external() {}
  /// Charges the bytes by which that has grown since, as a step ends, or gives back what it is less. They are
  /// libraries' (kernels, handles), which take memory at their first calls. Throws OutOfBudget when no room can be made
  /// for them; a later call charges them then.
  virtual void charge_external() {}
  /// Returns the charged bytes that are libraries', with the workspaces that they took as the device was opened. No
  /// tensor holds them, so they cannot leave. 0 on the host.
  virtual int64_t library_bytes() const { return 0; }

 protected:
  Device(c10::Device torch_device, Arena& arena)
      : torch_device_(torch_device), ledger_(torch_device.str()), memory_(arena, ledger_) {}
  Device(c10::Device torch_device, BlockSource& blocks)
      : torch_device_(torch_device), ledger_(torch_device.str()), memory_(blocks, ledger_) {}
  /// Makes find_device() return this device from now on. LibTorch must have been given `allocator`.
  void install(c10::Allocator* allocator);

 private:
  const c10::Device torch_device_;
  Ledger ledger_;
  DeviceMemory memory_;
  c10::Allocator* allocator_ = nullptr;
};

/// Returns the device that counts this memory; nullptr when no device does. Cost: one load.
Device* find_device(c10::Device device) noexcept;

/// Returns the counted block behind a storage on any device; nullptr for memory that is not counted, or absent.
inline Block* block_behind(const c10::DataPtr& data) {
  const Device* device = find_device(data.device());
  return device ? device->find_block(data) : nullptr;
}

}  // namespace spillway
