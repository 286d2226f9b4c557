/// The cache of the costs of links between ranks: they are measured once, then remembered.
#pragma once
#include <filesystem>
#include <string>

#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// The costs of links, and where they are from.
struct LinkCosts {
  Costs costs = {};
  std::string origin = {};          ///< text for the user: `measured`, `remembered in FILE`, and why not
  std::filesystem::path file = {};  ///< file that remembered them; empty where they were measured
};

/// Returns the costs of the communicator's links, equal on every rank. Rank 0 looks in `folder` for costs of the last
/// 30 days. They must be for these hosts and processors, levels, this MPI, rank 0's variables that choose networks, and
/// as many CPUs for each rank. Without such costs, or when `anew`, calibrate measures them, and rank 0 writes them
/// there. A failure to write is no error; `origin` says so. Collective. Throws CommError.
LinkCosts link_costs(Communicator& comm, const std::filesystem::path& folder, bool anew);

/// Removes the file of remembered links when links of such rates would need `bound_seconds` or more for the allreduces,
/// and these took `seconds`, less than half of that. The links are faster now. Returns a line that says so; empty when
/// nothing is wrong.
std::string forget_if_wrong(const LinkCosts& links, double bound_seconds, double seconds);

/// Returns `links between ranks, measured: level 1 5.6 us, 3.20 GB/s; …`.
std::string describe(const LinkCosts& links);

}  // namespace spillway::ddl
