/// spillway bench paging --largest.
#pragma once
#include <string>
#include <vector>

#include "tools/cli/train_flags.h"

namespace spillway::tools {

/// Prints, and writes to `json_file` if it is named, the largest edge that can be trained under each budget, with
/// paging and without. Budgets are per cent of the unconstrained peak at the flags' edge. Every edge that is tried is
/// observed in a step without a budget, so the host's memory is the limit.
int bench_largest(TrainFlags flags, const std::vector<double>& percents, const std::string& json_file);

}  // namespace spillway::tools
