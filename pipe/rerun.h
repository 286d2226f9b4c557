/// A filled cycle of a pipeline's steps, run again with other times.
#pragma once
#include <span>

#include "pipe/costs.h"
#include "pipe/fill.h"
#include "pipe/program.h"

namespace spillway::pipe {

/// Returns the cycle whose ranks keep to the order of `filled`, where items and extras take these times: the sixth
/// cycle after an idle pipeline. `extras` are those of fill(), whose seconds alone may differ. Filled::unfilled_seconds
/// are those of the same items in that order without the extras. Cost: O(n·log n) for n items of seven cycles. Throws
/// BadRequest where that order waits for ever, as that of another program does.
Filled rerun(const Filled& filled, const StepProgram& program, std::span<const Extra> extras, const Costs& costs);

}  // namespace spillway::pipe
