/// An allocator over one reserved address range, whose touched pages are never given back to the system.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/memory/free_ranges.h"
#include "core/memory/memory_range.h"

namespace spillway {

/// A best-fit allocator over one reserved range. A step that asks for the same sizes again gets pages that are already
/// faulted in. Pages are kept because page faults made a 3-D U-Net step 2.5 times slower. Blocks below 64 KiB come from
/// malloc, which also keeps them. Thread-safe. Alignment: 64 bytes. Cost: O(log free blocks).
class Arena {
 public:
  /// Reserves `capacity_bytes` of address space. Memory is used only where blocks were. Throws std::system_error when
  /// the range cannot be reserved.
  explicit Arena(int64_t capacity_bytes) : Arena(reserve_memory(capacity_bytes), capacity_bytes) {}
  /// Divides `range` into blocks. At most `capacity_bytes` are handed out at once, small blocks included.
  Arena(MemoryRange range, int64_t capacity_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns a block of `bytes`. Returns nullptr when the capacity does not allow it or no free range of this size is
  /// left. Also returns nullptr when the system has no memory for a small block.
  [[nodiscard]] void* try_allocate(int64_t bytes);
  /// Takes a block back. `bytes` must be the size that was asked for.
  void deallocate(void* data, int64_t bytes) noexcept;

  /// A function that is called with every block that comes back, before its bytes can be handed out again. It must not
  /// throw. Test doubles use it to poison freed memory. Set it, or reset it with nullptr, while no other thread uses
  /// the arena.
  using DeallocationObserver = std::function<void(void* data, int64_t bytes)>;
  void observe_deallocations(DeallocationObserver observer) { deallocation_observer_ = std::move(observer); }

  /// Returns true when a block of this size could be allocated now.
  bool fits(int64_t bytes) const noexcept;

  /// Keeps other threads out until unlock_after_fork(), as Ledger::lock_for_fork() does.
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

/// Returns twice the bytes of this machine's memory: the range of addresses that the CPU device reserves.
int64_t default_arena_bytes();

}  // namespace spillway
