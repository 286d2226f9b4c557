/// What of a plan the host has no room for.
#pragma once
#include <cstdint>
#include <set>
#include <utility>

#include "swap/schedule/simulation.h"
#include "swap/schedule/step_trace.h"

namespace spillway {

/// The absences that pass the disk, where at any time what is away is more than `host_bytes`: of that, what is needed
/// last, as the host tier sends it there. Cyclic over steps, like the plan.
Absences overflow(const StepTrace& trace, const std::vector<Leave>& leaves, int64_t host_bytes);

}  // namespace spillway
