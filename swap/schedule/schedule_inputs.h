/// What a schedule is made for.
#pragma once
#include <cstdint>

#include "core/bytes.h"
#include "swap/schedule/simulation.h"

namespace spillway {

struct ScheduleInputs {
  int64_t budget_bytes = kUnlimitedBytes;
  /// What is away beyond this passes the disk.
  int64_t host_budget_bytes = kUnlimitedBytes;
  LinkRates rates = {};
  /// Bytes of the budget that the schedule leaves unused, against small differences between steps.
  int64_t slack_bytes = 0;
  /// See SimulationInputs.
  int64_t small_bytes = 0;
  /// Weigh running cheap producers again against copying what they made.
  bool replay = true;
  /// How many candidate schedules may be simulated. Each costs about a millisecond per thousand operators.
  int32_t candidates = 300;
};

}  // namespace spillway
