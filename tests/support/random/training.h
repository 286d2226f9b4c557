// Training a random network for a few random steps, with or without a Session, down to every bit.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "swap/session.h"
#include "tests/support/random/cases.h"

namespace spillway::testing {

/// What to train in.
struct TrainingSurroundings {
  std::optional<SessionOptions> session = std::nullopt;  ///< none: stock LibTorch
  std::function<void(Session&)> opened = nullptr;        ///< called once with the Session
  std::function<void()> closing = nullptr;               ///< called before it closes
};

/// What came out, and what it took.
struct TrainingOutcome {
  std::string description;  ///< of the network and the steps
  /// Losses, weights, gradients, buffers and optimizer state, read once the Session is closed.
  std::vector<std::pair<std::string, std::vector<char>>> bits;
  SessionStats stats = {};
  int64_t floor_bytes = 0;     ///< the largest of all steps, and what was held when the Session opened
  bool floor_is_known = true;  ///< false if a step like no other was left by an exception
  int64_t repeated_steps = 0;
  /// A step that is repeated gives the same bits. Not with momentum, whose start an optimizer remembers.
  bool repeatable = true;
};

/// Trains the network of `seed` for at most `limits.steps` steps and with at most `limits.parts` layers. The seed
/// decides on the optimizer and on what the loop does beside: micro-batches, autocast, channels-last input, second
/// backward passes, a gradient penalty, clipping, evaluation, a batch of another size, a layer left out, an exception
/// of the user's in the middle of forward or backward, weights that are given other memory. A step whose copy failed
/// (CopyFailed) is repeated from a snapshot of the state.
TrainingOutcome train_random_net(uint64_t seed, const CaseLimits& limits, const TrainingSurroundings& surroundings);

/// What differs first, or nothing. Bits are compared, so NaN equals itself.
std::string first_difference(const TrainingOutcome& a, const TrainingOutcome& b);

}  // namespace spillway::testing
