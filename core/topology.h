/// What the host looks like: cores, and which of them a rank should use. hwloc's only door.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct HostTopology {
  std::string hostname;
  int64_t memory_bytes = 0;
  int numa_nodes = 0;
  /// Logical CPUs that this process may use, one per core first (hyperthread siblings last), grouped by NUMA node.
  std::vector<int> cpus;
  /// How many physical cores `cpus` cover.
  int cores = 0;
};

/// Discovers the host, ignoring a launcher's binding of this process to a subset (mpirun binds each of two ranks to one
/// core) but honouring the limits of its container. Throws std::runtime_error when hwloc cannot read the host.
HostTopology discover_host();

/// The contiguous share of `host.cpus` for rank `local_rank` of `local_size` ranks on this host; at least one CPU each,
/// shared when there are more ranks than CPUs.
std::vector<int> cpus_of_rank(const HostTopology& host, int local_rank, int local_size);

/// Lets the calling thread, and threads it starts later, run on `cpus`. Throws std::system_error when refused.
void set_affinity(const std::vector<int>& cpus);

}  // namespace spillway
