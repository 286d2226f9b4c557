/// What should leave, when, and when it should come back: made from the trace of the last step of the same kind.
#pragma once
#include <cstdint>
#include <vector>

#include "swap/step_trace.h"

namespace spillway {

struct ScheduleInputs {
  int64_t budget_bytes = kUnlimitedBytes;
  double out_bytes_per_second = 4e9;
  double in_bytes_per_second = 4e9;
  /// Bytes of the budget that the schedule leaves unused, against small differences between steps.
  int64_t slack_bytes = 0;
};

/// Actions hung on operator indices; index -1 is the step's beginning, stored at position 0.
struct Schedule {
  struct PageIn {
    int32_t slot;
    int32_t trigger;  ///< issue after this operator
    int32_t use;      ///< the operator that needs it
  };
  /// page_outs_after[i]: slots to start copying out once operator i has run.
  std::vector<std::vector<int32_t>> page_outs_after;
  /// In the order of their triggers.
  std::vector<PageIn> page_ins;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
};

/// Furthest-next-use eviction (Belady) over the trace under the budget, cyclic over steps; a page-out starts after the
/// last write before the eviction, since its copy makes the later drop free; a page-in starts as late as hides its copy
/// behind the operators before its use (copies of one direction run one after another) and as early as the budget
/// allows. Uses that the budget cannot serve ahead of time are left to demand. Cost: O(operators × resident slots).
Schedule make_schedule(const StepTrace& trace, const ScheduleInputs& inputs);

/// The first use of `slot` after operator `index`, counted on into the next step for slots that outlive it;
/// kNextUseUnknown when there is none.
int64_t next_use_after(const StepTrace& trace, const Slot& slot, int64_t index);

}  // namespace spillway
