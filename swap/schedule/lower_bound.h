/// The least time that a step can take under a budget, whatever the schedule.
#pragma once
#include <cstdint>

#include "swap/schedule/link_rates.h"
#include "swap/schedule/step_trace.h"

namespace spillway::swap {

/// Returns a bound by the resources alone, with perfect overlap. While operator i runs, the live bytes beyond the
/// budget must be elsewhere. Of these, M_i bytes were born in this step, are needed again and cannot be made again:
/// they left before i began and come back before the step ends. P_i bytes, those and the bytes that every step uses,
/// must come in at some time of the step.
///   T ≥ max( C,  max_i P_i / B_in,  max_i [ max(C_<i, M_i / B_out) + max(C_≥i, M_i / B_in) ] )
/// Here C is the compute time at its shortest, and C_<i that of the operators before i. Never above the optimum.
double bound_seconds(const StepTrace& trace, int64_t budget_bytes, const LinkRates& rates);

}  // namespace spillway::swap
