/// When a wait that polls should sleep.
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include "core/clock.h"

namespace spillway {

/// The sleep between two polls that look at something which wakes nobody: at MPI's requests, or at a GPU's events.
inline constexpr std::chrono::microseconds kSleepBetweenPolls{50};

/// Counts the polls of a wait that found nothing, and gives the processor away after each. What a wait is for is often
/// near, so it yields at first. It should sleep after some polls, so that it does not cost a core. It should also sleep
/// when a yield was long: then processes that never wait share the core, and each yield comes back only after their
/// time slices, but a sleeper is woken before them.
class VainPolls {
 public:
  /// A yield is long that took at least so much.
  static constexpr std::chrono::milliseconds kLongYield{1};

  /// The wait should sleep from poll number `most` on.
  explicit VainPolls(int64_t most = std::numeric_limits<int64_t>::max()) : most_(most) {}

  /// Notes a poll that found nothing. Yields and returns true, or returns false where the caller should sleep.
  bool yield() {
    ++count_;
    if (count_ >= most_ || was_long_) return false;
    const auto start = Clock::now();
    std::this_thread::yield();
    was_long_ = Clock::now() - start >= kLongYield;
    return true;
  }
  /// Notes that the wait has ended. The next one yields again.
  void found() {
    count_ = 0;
    was_long_ = false;
  }
  int64_t count() const { return count_; }

 private:
  const int64_t most_;
  int64_t count_ = 0;
  bool was_long_ = false;
};

}  // namespace spillway
