/// Where the ranks of a launch are: on which machines, near which memory, in which groups.
#pragma once
#include <string>
#include <vector>

#include "core/host/machine.h"
#include "ddl/comm/communicator.h"

namespace spillway::tools {

struct RankMap {
  ddl::Levels levels{1};
  std::vector<Machine> machines;                   ///< by host, with hostnames that differ
  std::vector<int> hosts;                          ///< by rank
  std::vector<std::vector<int>> cpus, numa_nodes;  ///< by rank; no nodes: all alike, or unknown

  const std::string& hostname_of(int rank) const {
    return machines[static_cast<size_t>(hosts[static_cast<size_t>(rank)])].hostname;
  }
};

/// What rank 0 learns of all ranks; the others get only what they know themselves. `machine` is what the caller takes
/// its host for, and its CPUs are looked up in. Collective. Throws CommError.
RankMap gather_rank_map(ddl::Communicator& comm, const Machine& machine);

/// What ranks of one group are to people: `host a`, `NUMA node 1`, `part of host a`, `2 hosts`, `rank 3`.
std::string name_of_group(const RankMap& map, const std::vector<int>& ranks);
/// What a level joins: `ranks`, `NUMA nodes`, `parts of a host`, `hosts`, `groups of hosts`.
std::string joined_by(const RankMap& map, int level);

}  // namespace spillway::tools
