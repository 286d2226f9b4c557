/// A plan as text for the terminal.
#pragma once
#include <string>

#include "runtime/planning/plan_report.h"

namespace spillway::tools {

/// Returns the plan's tables: the needs, the kinds of step under the budget, the choices that were weighed, and the
/// frontier.
std::string plan_tables(const runtime::PlanReport& report);

}  // namespace spillway::tools
