/// The report as one page without anything outside it.
#pragma once
#include <string>
#include <vector>

#include "runtime/report/named_result.h"

namespace spillway::report {

/// HTML that is well-formed XML too. Size: bounded by the pictures' width, not by the numbers of operators and steps.
std::string draw_page(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::report
