/// The simulation of a step: one lane of compute, one lane of copies in each direction, under a budget.
#pragma once
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "swap/pager/eviction_order.h"
#include "swap/schedule/link_rates.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// Actions on slots, each tied to an operator of a trace. Index -1, the step's beginning, is an operator here too.
struct Actions {
  struct PageIn {
    int32_t slot;
    int32_t trigger;  ///< issue after this operator
    int32_t use;      ///< the operator that needs it; from the operators' count on: in the next step
  };
  /// page_outs_after[i]: slots to start copying out once operator i has run.
  std::vector<std::vector<int32_t>> page_outs_after;
  /// releases_after[i]: slots that leave before all others from then on, until they are used again.
  std::vector<std::vector<int32_t>> releases_after;
  /// The page-ins, in the order of their triggers.
  std::vector<PageIn> page_ins;
};

/// One eviction.
struct Eviction {
  int32_t slot;
  int32_t at;       ///< the operator that needed the room
  int64_t back_at;  ///< the operator that uses it again; kNextUseUnknown: none in sight
  bool copied;      ///< its bytes had to be copied out first
};

/// Slots, each with the operator of the step whose use ends the slot's absence.
using AbsenceSet = std::set<std::pair<int32_t, int32_t>>;

struct Simulated {
  bool feasible = true;
  double seconds = 0;
  double exposed_seconds = 0;  ///< seconds that compute waited for copies
  double message_seconds = 0;  ///< seconds that compute waited for messages
  int64_t peak_bytes = 0;      ///< maximum of both steps, between operators too
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  std::vector<double> ends;             ///< seconds from the step's beginning to each operator's end
  std::vector<int64_t> resident_bytes;  ///< bytes while each operator ran, its own and unpaged ones included
  std::vector<Eviction> evictions;
  std::vector<Actions::PageIn> demanded;  ///< page-ins that an operator had to ask for; trigger = use - 1
};

struct SimulationInputs {
  int64_t budget_bytes = kUnlimitedBytes;
  int64_t small_bytes = 0;                          ///< slots below this are small (EvictionOrder)
  int64_t costly_bytes = 0;                         ///< copies of slots below this cost more than their bytes
  const LinkRates* rates = nullptr;                 ///< null: copies take no time
  const Actions* actions = nullptr;                 ///< null: everything on demand
  const std::vector<EvictionBias>* bias = nullptr;  ///< by slot; null: none
  /// By operator: slots that leave once it has run, although nothing needs their room yet; null: none.
  const std::vector<std::vector<int32_t>>* evictions_after = nullptr;
  const AbsenceSet* on_disk = nullptr;  ///< absences that pass the disk, if that is slower than the lanes; null: none
  /// True: slots that operators only stream are brought in like those needed resident, unless a slot used just after
  /// must leave for them. False: the pager's rule brings them in only for a next use that is nearer than another's.
  bool fetch_streamed = false;
};

/// Simulates two equal steps, one after the other, and returns the second. Slots that outlive steps are then where the
/// first one left them. Evicts and prefetches by the rules of Pager and Conductor. Cost: O(operators + evictions ×
/// resident slots).
Simulated simulate(const StepTrace& trace, const SimulationInputs& inputs);

}  // namespace spillway::swap
