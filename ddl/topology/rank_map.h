/// The places of a launch's ranks: on which machines, near which memory, in which groups.
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

  const std::string& hostname_of(int rank) const { return machines[hosts[rank]].hostname; }
};

/// Gathers the map of all ranks on rank 0. The other ranks get only the facts that they know themselves. `machine` is
/// the machine that the caller takes its host for; the caller's CPUs are looked up in it. Collective. Throws CommError.
RankMap gather_rank_map(ddl::Communicator& comm, const Machine& machine);

/// Returns a name for people of the ranks of one group: `host a`, `NUMA node 1`, `part of host a`, `2 hosts`, `rank 3`.
std::string name_of_group(const RankMap& map, const std::vector<int>& ranks);
/// Returns a name of the things that a level joins: `ranks`, `NUMA nodes`, `parts of a host`, `hosts`, `groups of
/// hosts`.
std::string joined_by(const RankMap& map, int level);

}  // namespace spillway::tools
