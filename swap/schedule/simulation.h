/// A step replayed on paper: one lane of compute, one lane of copies in each direction, under a budget.
#pragma once
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "swap/pager/eviction_order.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

/// What the copy lanes can do while operators run.
struct LinkRates {
  double out_bytes_per_second = 4e9;
  double in_bytes_per_second = 4e9;
  /// Seconds that compute loses for each second of copying (they share cores and the memory bus).
  double compute_slowdown = 0;
  /// Of pages that the host has no room for.
  double to_disk_bytes_per_second = 1e9;
  double from_disk_bytes_per_second = 1e9;
};

/// What to do with slots, hung on the operators of a trace. Index -1, the step's beginning, is an operator here too.
struct Actions {
  struct PageIn {
    int32_t slot;
    int32_t trigger;  ///< issue after this operator
    int32_t use;      ///< the operator that needs it; from the operators' count on: in the next step
  };
  /// page_outs_after[i]: slots to start copying out once operator i has run.
  std::vector<std::vector<int32_t>> page_outs_after;
  /// releases_after[i]: slots that shall be the first to go from then on, until they are used again.
  std::vector<std::vector<int32_t>> releases_after;
  /// In the order of their triggers.
  std::vector<PageIn> page_ins;
};

/// One eviction.
struct Leave {
  int32_t slot;
  int32_t at;       ///< the operator that needed the room
  int64_t back_at;  ///< the operator that uses it again; kNextUseUnknown: none in sight
  bool copied;      ///< its bytes had to be copied out first
};

/// Slots, and the operator of the step whose use of them ends their absence.
using Absences = std::set<std::pair<int32_t, int32_t>>;

struct Simulated {
  bool feasible = true;
  double seconds = 0;
  double exposed_seconds = 0;  ///< that compute waited for copies
  int64_t peak_bytes = 0;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  std::vector<int64_t> held;  ///< bytes while each operator ran, its own and unpaged ones included
  std::vector<Leave> leaves;
  std::vector<Actions::PageIn> demanded;  ///< page-ins that an operator had to ask for; trigger = use - 1
};

struct SimulationInputs {
  int64_t budget_bytes = kUnlimitedBytes;
  int64_t small_bytes = 0;                          ///< slots below this are small (EvictionOrder)
  const LinkRates* rates = nullptr;                 ///< null: copies take no time
  const Actions* actions = nullptr;                 ///< null: everything on demand
  const std::vector<EvictionBias>* bias = nullptr;  ///< by slot; null: none
  /// By operator: slots that leave once it has run, although nothing needs their room yet; null: none.
  const std::vector<std::vector<int32_t>>* sent_after = nullptr;
  const Absences* on_disk = nullptr;  ///< what passes the disk, if that is slower than the lanes; null: nothing
  /// Bring in what operators only stream like what they need resident, unless something used just after must leave for
  /// it. Else by the pager's rule: only for a next use that is nearer than another's.
  bool fetch_streamed = false;
};

/// The second of two equal steps, one after the other, so that what outlives steps is where the first one left it.
/// Evicts and prefetches by the rules of Pager and Conductor. Cost: O(operators + evictions × resident slots).
Simulated simulate(const StepTrace& trace, const SimulationInputs& inputs);

}  // namespace spillway
