// A double of freed memory: blocks that an arena takes back are filled with a pattern that cannot pass for data.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/memory/arena.h"

namespace spillway::testing {

/// A byte whose repetition is NaN in every floating-point format, an index out of every range, and no address.
inline constexpr unsigned char kPoison = 0xff;

/// Fills memory that must not be read any more.
inline void poison(void* data, int64_t bytes) {
  std::memset(data, kPoison, static_cast<size_t>(bytes));
}

/// A guard under which every block that comes back to the arena is poisoned, descriptors too. A late read of it, or
/// copy from it, then gets the pattern instead of the bytes left there.
class PoisonFreed {
 public:
  explicit PoisonFreed(Arena& arena) : arena_(arena) {
    arena_.observe_deallocations([this](void* data, int64_t bytes) {
      poison(data, bytes);
      ++blocks_;
    });
  }
  ~PoisonFreed() { arena_.observe_deallocations(nullptr); }
  PoisonFreed(const PoisonFreed&) = delete;
  PoisonFreed& operator=(const PoisonFreed&) = delete;
  int64_t blocks() const { return blocks_; }

 private:
  Arena& arena_;
  std::atomic<int64_t> blocks_ = 0;
};

}  // namespace spillway::testing
