/// The host tier's memory, which holds pages that leave the device.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "core/memory/arena.h"

namespace spillway {

/// One slab of host memory with a capacity of its own. Memory is used only where pages were, and is kept from then on.
/// Blocks of 64 KiB and more are aligned to 4096 bytes, because a disk needs that alignment. Children of fork() do not
/// have these blocks. Thread-safe.
class HostSlab {
 public:
  /// Reserves `capacity_bytes` of address space. Throws std::system_error when that fails.
  explicit HostSlab(int64_t capacity_bytes) : HostSlab(reserve_memory(capacity_bytes), capacity_bytes) {}
  /// Divides `range`, which the caller made to suit the device: memory near it, or pinned for it.
  /// `limited_by` names what made the capacity smaller than the host budget; empty: it is the host budget.
  HostSlab(MemoryRange range, int64_t capacity_bytes, std::string limited_by = {});

  /// Returns a block of `bytes`. Throws OutOfBudget when no range of this size is left. The message names the capacity
  /// and its limit, the bytes in use and the missing bytes.
  [[nodiscard]] void* allocate(int64_t bytes);
  /// Returns a block of `bytes`, or nullptr when no range of this size is left.
  [[nodiscard]] void* try_allocate(int64_t bytes) { return arena_.try_allocate(bytes); }
  void deallocate(void* data, int64_t bytes) noexcept { arena_.deallocate(data, bytes); }
  /// Returns true when a block of this size could be allocated now.
  bool fits(int64_t bytes) const noexcept { return arena_.fits(bytes); }

  int64_t capacity_bytes() const noexcept { return arena_.capacity_bytes(); }
  int64_t used_bytes() const noexcept { return arena_.used_bytes(); }
  int64_t peak_bytes() const noexcept { return arena_.peak_bytes(); }
  Arena& arena() noexcept { return arena_; }

 private:
  Arena arena_;
  const std::string limited_by_;
};

}  // namespace spillway
