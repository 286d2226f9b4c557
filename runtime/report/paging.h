/// The report's tables of what was paged and what needs most room.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/results/paging_summary.h"

namespace spillway::report {

/// What bounds the step, what leaves the device and why, and the operators by footprint, held against the budget.
std::string draw_paging(const PagingSummary& paging, int64_t budget_bytes);

}  // namespace spillway::report
