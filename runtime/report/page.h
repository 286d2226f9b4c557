/// The report as one self-contained page.
#pragma once
#include <string>
#include <vector>

#include "runtime/results/train_result.h"

namespace spillway::report {

/// Draws the page in HTML that is well-formed XML too. Its size is bounded by the pictures' width, not by the numbers
/// of operators and steps.
std::string draw_page(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::report
