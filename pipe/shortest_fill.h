/// The shortest of several ways to fill the waits of a pipeline.
#pragma once
#include <span>
#include <utility>

#include "pipe/costs.h"
#include "pipe/fill.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// Fills the waits of a cycle of steps in several ways, and returns the shortest cycle, the first one of equals:
/// - the extras in the waits of the program as it is;
/// - where gradients of weights are apart, the same with these placed anew, at most one for each rank held at once;
/// - the extras in the step that they are of, after its rank's passes, as without a plan. Extras that begin after an
///   update stay as they are.
/// The flag is false for the last way, so that no plan is longer than none. Filled::unfilled_seconds are those of the
/// shortest cycle without extras. Cost and errors are those of fill(), `steps` ≥ 1.
std::pair<Filled, bool> fill_shortest(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                                      int steps);

}  // namespace spillway::pipe
