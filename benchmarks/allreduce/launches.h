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
  std::vector<std::string> arguments{};  ///< arguments of this program
  /// Arguments for launches that force Open MPI's ring and Rabenseifner's algorithm, if the launcher is its; empty:
  /// none.
  std::vector<std::string> forced_arguments{};
  std::string gloo_python{};              ///< Python for launches of torch's gloo; empty: none
  nlohmann::json gloo_options = nullptr;  ///< result of gloo_options()
  double comm_timeout_seconds = 60;       ///< timeout of gloo; the program's is in its arguments
};

/// Launches this program `launches` times, interleaved with the other kinds, and puts the rows together. For every
/// problem and algorithm a row has `seconds` (median of the launches), `min_seconds`, `p95_seconds`,
/// `in_place_seconds`, all `call_seconds`, and the sum of `wrong`. Its other fields are those of the first launch. Each
/// launch calibrates and chooses by itself, so `bound_seconds` is the median over all rows of a problem. Where there
/// are predictions, `predicted_seconds` is their median, and `by_launch` has the choice, prediction and times of each
/// launch. `costs_by_launch` has the costs that each launch had calibrated. Rows of forced launches are named
/// `mpi-ring` and `mpi-rabenseifner`, those of gloo `gloo`. The field `gloo` says which gloo it was, {python torch}, or
/// is null. The launcher's command is in `launcher`. Returns null when an interrupt ended a launch. Throws
/// std::runtime_error with the launcher's exit code when one fails; the ranks' output has then gone to stderr.
nlohmann::json run_launches(const LaunchOptions& options);

}  // namespace spillway::tools
