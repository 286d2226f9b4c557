/// The inputs from which a schedule is made.
#pragma once
#include <cstdint>

#include "core/bytes.h"
#include "swap/schedule/link_rates.h"

namespace spillway::swap {

struct ScheduleInputs {
  int64_t budget_bytes = kUnlimitedBytes;
  /// The host's budget; an absence beyond it passes the disk.
  int64_t host_budget_bytes = kUnlimitedBytes;
  LinkRates rates = {};
  /// Bytes of the budget that the schedule leaves unused, against small differences between steps.
  int64_t slack_bytes = 0;
  /// The sizes below which slots are small, and costly to copy; see SimulationInputs.
  int64_t small_bytes = 0;
  int64_t costly_bytes = 0;
  /// True: weigh running cheap producers again against copying their results.
  bool replay = true;
  /// The maximum of candidate schedules that are simulated. Each costs about a millisecond per thousand operators, and
  /// all have a million operators together at most.
  int32_t candidates = 300;
  /// The search ends with a candidate that takes so many times as long as the bound.
  double good_enough = 1.001;
};

}  // namespace spillway::swap
