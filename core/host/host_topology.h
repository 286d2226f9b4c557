/// What the host looks like: cores, memory, and which of them a rank should use. hwloc's door, with
/// core/host/machine.h.
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
/// core) but honouring the limits of its container. `cpus` and `cores` are of `allowed` alone, where that names any of
/// them. Throws std::runtime_error when hwloc cannot read the host.
HostTopology discover_host(const std::vector<int>& allowed = {});

/// The contiguous share of `host.cpus` for rank `local_rank` of `local_size` ranks on this host; at least one CPU each,
/// shared when there are more ranks than CPUs.
std::vector<int> cpus_of_rank(const HostTopology& host, int local_rank, int local_size);

/// Lets the calling thread, and threads it starts later, run on `cpus`. Throws std::system_error when refused.
void set_affinity(const std::vector<int>& cpus);

/// The CPUs that the calling thread may run on.
std::vector<int> cpus_of_this_thread();
/// The CPUs that another process may run on. Throws std::system_error when there is no such process.
std::vector<int> cpus_of_process(int process);

/// The NUMA nodes, by the system's numbers, whose memory is next to `cpus`. Empty when those are all that the host has:
/// there is nothing to prefer then. Throws std::runtime_error when hwloc cannot read the host.
std::vector<int> numa_nodes_near(const std::vector<int>& cpus);

/// The same for a device on the PCI bus, by its address (`0000:3b:00.0`). Also empty when the system does not say which
/// are near it.
std::vector<int> numa_nodes_near_pci(const std::string& bus_id);

/// Lets the range's pages, which must not have been touched yet, come from `nodes` while those have memory left. False
/// when the system does not take such wishes, or `nodes` is empty.
bool prefer_numa_nodes(void* data, int64_t bytes, const std::vector<int>& nodes);

}  // namespace spillway
