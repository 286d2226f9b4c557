/// What an allreduce benchmark found, for people.
#pragma once
#include <nlohmann/json.hpp>

namespace spillway::tools {

/// Adds to what run_trial() or run_launches() found what follows from the times: to each row nccl-tests' bandwidths,
/// the share of the bound, and the installed MPI's time; to rows with a prediction `model_error`; to all `model_error`.
///   A row's error is |predicted − measured| / measured: the median over the launches, each beside its own prediction,
///   and over both times, out of place and in place. All: {median worst worst_bytes sizes} over the sizes, or null.
void complete(nlohmann::json& result);

/// The table in nccl-tests' columns, with the costs above and the model's error below. Of completed results.
void print(const nlohmann::json& result);

/// What each level did for each size, by the plan that the cost model chose: on rank 0, in the first launch.
void print_explanations(const nlohmann::json& result);

}  // namespace spillway::tools
