/// The results of a benchmark of collectives, as text for the user.
#pragma once
#include <nlohmann/json.hpp>

namespace spillway::tools {

/// Adds the values that follow from the times to a result of Trial::run() or run_launches().
///   Each row gets nccl-tests' bandwidths, the share of the bound, the installed MPI's time, and where there is a
///   prediction `model_error`. It also gets `spread` and `in_place_spread` of calls alone {min p50 p95 p99 max
///   _seconds}.
///   The whole result gets `model_error`, `out_of_bounds` (elements that are wrong in any row), and
///   `avg_bus_bandwidth` in GB/s by algorithm. This average is over rows and both places, of calls back to back where
///   they were measured.
///   A row's model error is |predicted − measured| / measured. It is the median over the launches, each beside its
///   own prediction, and over both times, out of place and in place. The whole result's is {median worst worst_bytes
///   sizes}, or null.
void complete(nlohmann::json& result);

/// Prints the ranks, the settings, and the table in nccl-tests' columns, once for calls alone and once for calls back
/// to back. The costs are above the table, the model's error and nccl-tests' last lines below it. `result` must be
/// completed.
void print(const nlohmann::json& result);

/// Prints the traffic and the times of each level for each size, by the plan that the cost model chose. They are rank
/// 0's in the first launch.
void print_explanations(const nlohmann::json& result);

}  // namespace spillway::tools
