/// A plan as JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "runtime/planning/plan_report.h"

namespace spillway {

/// Returns the plan's numbers: bytes are whole numbers, times are seconds (docs/cli/plan.md names the keys).
nlohmann::json to_json(const runtime::PlanReport& report);

}  // namespace spillway
