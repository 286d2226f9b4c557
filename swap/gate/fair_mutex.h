/// The mutex that decides which thread may run an operator on the device.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace spillway::swap {

/// A fair mutex: threads get it in the order in which they asked, so a thread that asks again at once does not starve
/// the others. Use with std::unique_lock. Cost when no thread waits: two uncontended locks.
class FairMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = next_++;
    changed_.wait(lock, [&] { return serving_ == mine; });
  }
  void unlock() {
    {
      std::lock_guard lock(mutex_);
      ++serving_;
    }
    changed_.notify_all();
  }
  /// Returns how often a turn has been asked for.
  uint64_t asked() const {
    std::lock_guard lock(mutex_);
    return next_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  uint64_t serving_ = 0;
};

}  // namespace spillway::swap
