/// The host memory that a plan takes, and the part of the plan that the host has no room for.
#pragma once
#include <cstdint>
#include <set>
#include <utility>

#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// Returns the absences that pass the disk, because at some time the absent slots have more than `host_bytes`. Of those
/// slots, the ones that are needed last go to disk, as the host tier sends them there. Cyclic over steps, like the
/// plan.
AbsenceSet overflow(const StepTrace& trace, const std::vector<Eviction>& evictions, int64_t host_bytes);

/// Returns the most bytes that the host holds at once for slots that leave. A slot's copy is there from the eviction
/// until the slot is written again or ends. Cyclic over steps. Cost: O(operators + evictions).
int64_t host_peak_bytes(const StepTrace& trace, const std::vector<Eviction>& evictions);

}  // namespace spillway::swap
