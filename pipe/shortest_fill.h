/// The shortest of several ways to fill the bubbles of a pipeline.
#pragma once
#include <span>
#include <utility>

#include "pipe/costs.h"
#include "pipe/fill.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// Fills the bubbles of a cycle of steps in several ways, and returns the shortest cycle, the first one of equals:
/// - the extras in the bubbles of the program as it is;
/// - where gradients of weights are items of their own, the same with these placed anew, at most one for each rank held
///   at once;
/// - the extras in the step in which they are taken, after the passes of their rank, as without a plan. Extras that
///   begin after an update stay as they are.
/// The flag is false for the last way, so that no plan is longer than none. Filled::unfilled_seconds are those of the
/// shortest cycle without extras. Cost and errors are those of fill(), `steps` ≥ 1.
std::pair<Filled, bool> fill_shortest(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                                      int steps);

}  // namespace spillway::pipe
