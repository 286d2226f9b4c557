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
  bool forced = true;  ///< also launches that force the installed MPI's ring and Rabenseifner (Open MPI's parameters)
};

/// Launches `arguments` of this program so often, interleaved, and puts their rows together: for every size and
/// algorithm `seconds` (median of the launches), `min_seconds`, `p95_seconds`, `in_place_seconds`, all that was
/// `wrong`, and whatever the first launch says besides. Each launch calibrates and chooses by itself: `bound_seconds`
/// is the median of all of a size; where there are predictions `predicted_seconds` is theirs, and `by_launch` has what
/// each launch chose, predicted and measured; `costs_by_launch` has what each had calibrated. Forced launches get
/// `--mpi-only` and their rows the names `mpi-ring` and `mpi-rabenseifner`. Throws std::runtime_error with the
/// launcher's last words when one fails.
nlohmann::json run_launches(const LaunchOptions& options, const std::vector<std::string>& arguments);

}  // namespace spillway::tools
