/// The host tier's memory: where pages go when they leave the device.
#pragma once
#include <cstdint>
#include <utility>

#include "core/memory/arena.h"

namespace spillway {

/// One slab of host memory with a capacity of its own; memory is used only where pages were and then kept. Blocks of
/// 64 KiB and more are aligned to 4096 bytes, as a disk wants them, and children of fork() do not have them.
/// Thread-safe.
class HostSlab {
 public:
  /// Reserves `capacity_bytes` of address space. Throws std::system_error when that fails.
  explicit HostSlab(int64_t capacity_bytes) : HostSlab(reserve_memory(capacity_bytes), capacity_bytes) {}
  /// Divides `range`, made by someone who knows the device: memory near it, or pinned for it.
  HostSlab(MemoryRange range, int64_t capacity_bytes);

  /// Throws OutOfBudget naming capacity and use, and how many bytes are missing, when no range of this size is left.
  [[nodiscard]] void* allocate(int64_t bytes);
  /// The same, with nullptr for the error.
  [[nodiscard]] void* try_allocate(int64_t bytes) { return arena_.try_allocate(bytes); }
  void deallocate(void* data, int64_t bytes) noexcept { arena_.deallocate(data, bytes); }
  /// Whether a block of this size could be had now.
  bool fits(int64_t bytes) const noexcept { return arena_.fits(bytes); }

  int64_t capacity_bytes() const noexcept { return arena_.capacity_bytes(); }
  int64_t used_bytes() const noexcept { return arena_.used_bytes(); }
  int64_t peak_bytes() const noexcept { return arena_.peak_bytes(); }
  Arena& arena() noexcept { return arena_; }

 private:
  Arena arena_;
};

}  // namespace spillway
