// A double of memory that is gone: what an arena takes back is filled with a pattern that nobody mistakes for data.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/memory/arena.h"

namespace spillway::testing {

/// A byte whose repetition is NaN in every floating-point format, an index out of every range and no address.
inline constexpr unsigned char kPoison = 0xff;

/// Fills memory that nobody may read any more.
inline void poison(void* data, int64_t bytes) {
  std::memset(data, kPoison, static_cast<size_t>(bytes));
}

/// While it lives, every block that comes back to the arena is poisoned, descriptors too, so that whoever still reads
/// it (or copies from it) gets something else than the bytes that happen to be left there.
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
