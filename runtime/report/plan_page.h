/// A plan as one self-contained page.
#pragma once
#include <filesystem>
#include <string>

#include "runtime/planning/plan_report.h"

namespace spillway::report {

/// Draws the time of a step over the budget, a curve for each size: SVG with a heading. A curve begins at the smallest
/// budget that was asked for and fits. Empty when nothing fits.
std::string draw_frontier(const runtime::PlanReport& report);

/// Draws the page: the plan, the choices that were weighed, and the frontier. HTML that is well-formed XML too.
std::string draw_plan_page(const runtime::PlanReport& report);

}  // namespace spillway::report

namespace spillway {

/// Writes DIR/plan.html, and makes DIR. Throws std::system_error naming the file when it cannot be written whole.
void write_plan_page(const std::filesystem::path& dir, const runtime::PlanReport& report);

}  // namespace spillway
