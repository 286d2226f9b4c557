/// Results of a benchmark of collectives, for people.
#pragma once
#include <nlohmann/json.hpp>

namespace spillway::tools {

/// Adds to what Trial::run() or run_launches() found what follows from the times.
///   Each row: nccl-tests' bandwidths, the share of the bound, the installed MPI's time, `spread` and `in_place_spread`
///   of calls alone {min p50 p95 p99 max _seconds}; where there is a prediction `model_error`.
///   All: `model_error`, `out_of_bounds` (elements that are wrong in any row), `avg_bus_bandwidth` in GB/s by
///   algorithm, over rows and both places, of calls back to back where they were measured.
///   A row's model error is |predicted − measured| / measured: the median over the launches, each beside its own
///   prediction, and over both times, out of place and in place. All: {median worst worst_bytes sizes}, or null.
void complete(nlohmann::json& result);

/// The ranks, the settings, and the table in nccl-tests' columns, once for calls alone and once for calls back to back;
/// costs above, the model's error and nccl-tests' last lines below. Of completed results.
void print(const nlohmann::json& result);

/// What each level did for each size, by the plan that the cost model chose: on rank 0, in the first launch.
void print_explanations(const nlohmann::json& result);

}  // namespace spillway::tools
