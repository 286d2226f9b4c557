/// The learning rate of each step. LibTorch-free.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway {

/// A change of a value: from the first step of epoch `epoch` on (the first epoch is 0), it is `factor` times as large.
struct Decay {
  double factor;
  int64_t epoch;
};

/// Reads `0.1@30,0.5@60`; an empty text gives no decays. Factors are above 0, epochs 1 or more. Throws BadRequest
/// naming `who`, the text and the accepted form.
std::vector<Decay> parse_decays(std::string_view who, std::string_view text);

/// A schedule of the learning rate: lr(t) = lr · min(1, (t + 1) / warmup) · Π factors of the decays whose epoch has
/// begun.
struct LrSchedule {
  double lr;
  int64_t warmup_steps = 0;
  std::vector<Decay> decays = {};
  int64_t steps_per_epoch = 1;
  /// Steps added to a step before its epoch is computed. A run that was resumed on another number of ranks needs them,
  /// because its former steps took more or fewer cases than its next ones.
  int64_t epoch_shift_steps = 0;

  /// Returns the learning rate of step `step`, counted from 0.
  double at(int64_t step) const;
  /// Returns the first step of epoch `epoch`; 0 where the epoch began before the first step.
  int64_t first_step_of(int64_t epoch) const;
};

}  // namespace spillway
