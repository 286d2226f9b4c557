// A random network trained for a few random steps, with or without a Session, and compared down to every bit.
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

/// The surroundings of a training.
struct TrainingSurroundings {
  std::optional<SessionOptions> session = std::nullopt;  ///< none: LibTorch alone
  std::function<void(Session&)> opened = nullptr;        ///< called once with the Session
  std::function<void()> closing = nullptr;               ///< called before the Session closes
};

/// The results of a training, and the resources that it took.
struct TrainingOutcome {
  std::string description;  ///< describes the network and the steps
  /// Bytes of losses, weights, gradients, buffers and optimizer state, read once the Session is closed.
  std::vector<std::pair<std::string, std::vector<char>>> bits;
  SessionStats stats = {};
  int64_t floor_bytes = 0;     ///< the largest floor of all steps, and the bytes held when the Session opened
  bool floor_is_known = true;  ///< false if an exception left a step like no other
  int64_t repeated_steps = 0;
  /// True when a repeated step gives the same bits. Momentum makes it false, because an optimizer remembers its start.
  bool repeatable = true;
};

/// Trains the network of `seed` for at most `limits.steps` steps and with at most `limits.parts` layers. The seed
/// decides on the optimizer and on the variations of the loop. These are micro-batches, autocast, channels-last input,
/// second backward passes, a gradient penalty, clipping, evaluation, a batch of another size and a layer left out.
/// Others are an exception of the user's in the middle of forward or backward, and weights that are given other memory.
/// A step whose copy failed (CopyFailed::is()) is repeated from a snapshot of the state.
TrainingOutcome train_random_net(uint64_t seed, const CaseLimits& limits, const TrainingSurroundings& surroundings);

/// Returns the first difference, or an empty text. Bits are compared, so NaN equals itself.
std::string first_difference(const TrainingOutcome& a, const TrainingOutcome& b);

}  // namespace spillway::testing
