/// Memory that is kept: one reserved address range, handed out in blocks, whose touched pages are never given back.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/memory/free_ranges.h"
#include "core/memory/memory_range.h"

namespace spillway {

/// A best-fit allocator over one reserved range. A step that asks for the same sizes again gets pages that are already
/// faulted in (page faults made a 3-D U-Net step 2.5 times slower). Blocks below 64 KiB come from malloc, which keeps
/// them too. Thread-safe. Alignment: 64 bytes. Cost: O(log free blocks).
class Arena {
 public:
  /// Reserves `capacity_bytes` of address space; memory is used only where blocks were.
  /// Throws std::system_error when the range cannot be reserved.
  explicit Arena(int64_t capacity_bytes) : Arena(reserve_memory(capacity_bytes), capacity_bytes) {}
  /// Divides `range`, of which at most `capacity_bytes` are handed out at once, small blocks included.
  Arena(MemoryRange range, int64_t capacity_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// nullptr when the capacity does not allow it, no free range of this size is left, or the system has no memory for
  /// a small block.
  [[nodiscard]] void* try_allocate(int64_t bytes);
  /// `bytes` as it was asked for.
  void deallocate(void* data, int64_t bytes) noexcept;

  /// Shown every block that comes back, before its bytes can be handed out again; must not throw. For doubles that
  /// poison what was freed. Set it, or reset it with nullptr, while no other thread uses the arena.
  using DeallocationObserver = std::function<void(void* data, int64_t bytes)>;
  void observe_deallocations(DeallocationObserver observer) { deallocation_observer_ = std::move(observer); }

  /// Whether a block of this size could be had now.
  bool fits(int64_t bytes) const noexcept;

  /// See Ledger.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  int64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  int64_t used_bytes() const noexcept;
  int64_t peak_bytes() const noexcept;

  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kSmallBytes = 64 << 10;

 private:
  bool fits_locked(int64_t bytes) const noexcept;

  const MemoryRange range_;
  const int64_t capacity_bytes_;
  DeallocationObserver deallocation_observer_;
  mutable std::mutex mutex_;
  FreeRanges free_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

/// A range that covers this machine's memory twice over: what a device or host tier without a limit reserves.
int64_t default_arena_bytes();

}  // namespace spillway
