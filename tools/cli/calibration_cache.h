/// What the links between ranks do: measured once, then remembered.
#pragma once
#include <filesystem>
#include <string>

#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/communicator.h"

namespace spillway::tools {

/// Where costs are remembered: `links/` in SPILLWAY_CACHE, else in spillway/ of XDG_CACHE_HOME or of ~/.cache. Empty
/// where none of these is set.
std::filesystem::path link_cache_folder();

struct LinkCosts {
  ddl::Costs costs = {};
  std::string origin = {};          ///< for people: `measured`, `remembered in FILE`, and why not
  std::filesystem::path file = {};  ///< that remembered them; empty where they were measured
};

/// Costs of the communicator's links, the same on every rank: what rank 0 finds in `folder`, of the last 30 days, for
/// these hosts and processors, levels, this MPI, rank 0's variables that choose networks, and as many CPUs for each
/// rank; else, or where `anew`, what ddl::calibrate measures, which rank 0 then writes there (no error if it cannot;
/// `origin` says so). Collective. Throws CommError.
LinkCosts link_costs(ddl::Communicator& comm, const std::filesystem::path& folder, bool anew);

/// Removes the file of remembered links where allreduces took `seconds` and links of such rates would need at least
/// `bound_seconds`, twice as long: links are faster now. Says so in a line; empty: nothing is wrong.
std::string forget_if_wrong(const LinkCosts& links, double bound_seconds, double seconds);

/// `links between ranks, measured: level 1 5.6 us, 3.20 GB/s; …`
std::string describe(const LinkCosts& links);

}  // namespace spillway::tools
