/// A wait that polls at first and sleeps later.
#pragma once
#include <chrono>
#include <thread>

#include "core/clock.h"

namespace spillway {

/// The polls after which a wait sleeps between polls that only look: at MPI's requests, or at a GPU's events.
inline constexpr int kPollsBeforeSleep = 2000;
inline constexpr std::chrono::microseconds kSleepBetweenPolls{50};

/// The polls of a wait that found nothing. A poller yields the processor a number of times, because what it waits for
/// is often near. Then it should sleep. Where processes that never wait share the cores, a yield comes back only after
/// all of their time slices, but a sleeper is woken before them. So a wait that has lasted should sleep too, however
/// few its polls.
class VainPolls {
 public:
  static constexpr std::chrono::milliseconds kMostYielding{1};

  /// It should sleep from poll number `most` of a wait on.
  explicit VainPolls(int most) : most_(most) {}

  /// Notes a vain poll. Yields and returns true, or returns false where the caller should sleep.
  bool yield() {
    if (count_ == 0) first_ = Clock::now();
    if (++count_ >= most_ || has_lasted_) return false;
    std::this_thread::yield();
    has_lasted_ = Clock::now() - first_ >= kMostYielding;
    return true;
  }
  /// Ends the wait.
  void found() {
    count_ = 0;
    has_lasted_ = false;
  }
  int count() const { return count_; }

 private:
  const int most_;
  int count_ = 0;
  bool has_lasted_ = false;
  Clock::time_point first_;
};

}  // namespace spillway
