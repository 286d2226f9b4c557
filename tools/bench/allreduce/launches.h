/// Fresh launches of a benchmark under mpirun, one after another.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::tools {

struct LaunchOptions {
  std::vector<std::string> launcher{"mpirun"};  ///< the command in front of the program, with its arguments
  int ranks = 0;
  int launches = 5;
  std::vector<std::string> arguments{};  ///< of this program
  /// For launches that force Open MPI's ring and Rabenseifner's algorithm, if the launcher is its; empty: none.
  std::vector<std::string> forced_arguments{};
  std::string gloo_python{};              ///< for launches of torch's gloo; empty: none
  nlohmann::json gloo_options = nullptr;  ///< gloo_options()
  double comm_timeout_seconds = 60;       ///< gloo's; the program's is in its arguments
};

/// Launches this program so often, interleaved, and puts their rows together: for every problem and
/// algorithm `seconds` (median of the launches), `min_seconds`, `p95_seconds`, `in_place_seconds`, all `call_seconds`,
/// all that was `wrong`, and whatever the first launch says besides. Each launch calibrates and chooses by itself:
/// `bound_seconds` is the median of all of a problem; where there are predictions `predicted_seconds` is theirs, and
/// `by_launch` has what each launch chose, predicted and measured; `costs_by_launch` has what each had calibrated.
/// Rows of forced launches are named `mpi-ring` and `mpi-rabenseifner`, those of gloo `gloo`; `gloo` says which it was,
/// {python torch}, or is null. The launcher's command is in `launcher`. Null when an interrupt ended a launch. Throws
/// std::runtime_error with the launcher's last words when one fails.
nlohmann::json run_launches(const LaunchOptions& options);

}  // namespace spillway::tools
