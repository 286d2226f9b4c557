/// The summary of a step's schedule.
#pragma once
#include "runtime/recording/session_report.h"

namespace spillway::swap {
struct Schedule;
struct StepTrace;
}  // namespace spillway::swap

namespace spillway::runtime {

/// Returns the summary of a step and its schedule.
PagingSummary summarize_paging(const swap::StepTrace& trace, const swap::Schedule& schedule);

}  // namespace spillway::runtime
