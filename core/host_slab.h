/// The host tier: where pages go when they leave the device.
#pragma once
#include <cstdint>

#include "core/arena.h"

namespace spillway {

/// One slab of host memory with a capacity of its own; memory is used only where pages were and then kept.
/// Thread-safe.
class HostSlab {
 public:
  /// Reserves `capacity_bytes` of address space. Throws std::system_error when that fails.
  explicit HostSlab(int64_t capacity_bytes) : arena_(capacity_bytes) {}

  /// Throws OutOfBudget naming capacity and use when no range of this size is left.
  [[nodiscard]] void* allocate(int64_t bytes);
  void deallocate(void* data, int64_t bytes) noexcept { arena_.deallocate(data, bytes); }

  int64_t capacity_bytes() const noexcept { return arena_.capacity_bytes(); }
  int64_t used_bytes() const noexcept { return arena_.used_bytes(); }
  int64_t peak_bytes() const noexcept { return arena_.peak_bytes(); }
  Arena& arena() noexcept { return arena_; }

 private:
  Arena arena_;
};

}  // namespace spillway
