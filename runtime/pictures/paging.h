/// The report's tables of the paged tensors and of the operators that need most memory.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/recording/session_report.h"

namespace spillway::report {

/// Draws the bound of the step, the tensors that leave the device and why, and the operators by footprint, compared
/// with the budget.
std::string draw_paging(const PagingSummary& paging, int64_t budget_bytes);

}  // namespace spillway::report
