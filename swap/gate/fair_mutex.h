/// The mutex that decides which thread may run an operator on the device.
#pragma once
#include <atomic>
#include <cstdint>

namespace spillway::swap {

/// A fair mutex: threads get it in the order in which they asked, so a thread that asks again at once does not starve
/// the others. Use with std::unique_lock. Cost when no thread waits: two atomic additions.
class FairMutex {
 public:
  void lock() noexcept {
    const uint32_t mine = next_.fetch_add(1, std::memory_order_relaxed);
    for (uint32_t serving = serving_.load(std::memory_order_acquire); serving != mine;
         serving = serving_.load(std::memory_order_acquire))
      serving_.wait(serving, std::memory_order_acquire);
  }
  void unlock() noexcept {
    serving_.fetch_add(1);  // sequentially consistent: before notify_all() looks for threads that wait
    serving_.notify_all();
  }
  /// Returns how often a turn has been asked for, modulo 2^32.
  uint32_t asked() const noexcept { return next_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> next_ = 0;
  std::atomic<uint32_t> serving_ = 0;
};

}  // namespace spillway::swap
