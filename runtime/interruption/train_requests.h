/// Requests to a training while it runs.
#pragma once
#include <atomic>

namespace spillway {

/// Requests to a training while it runs, from a signal handler or another thread. The requests of one rank apply to
/// every rank.
struct TrainRequests {
  /// End as soon as the state of the last whole step can be kept: before the next operator of forward, backward or a
  /// validation, else after the step. With K-FAC's overlap_factors and several ranks always after the step.
  std::atomic<bool> stop = false;
  std::atomic<bool> checkpoint = false;  ///< write a checkpoint after the current step and go on; train() clears it
  static_assert(std::atomic<bool>::is_always_lock_free, "set in signal handlers");
};

}  // namespace spillway
