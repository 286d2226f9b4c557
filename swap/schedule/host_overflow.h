/// The part of a plan that the host has no room for.
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
AbsenceSet overflow(const StepTrace& trace, const std::vector<Eviction>& leaves, int64_t host_bytes);

}  // namespace spillway::swap
