/// The host's cores and memory, and the part of them that a rank should use. Only this header and core/host/machine.h
/// give access to hwloc.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct HostTopology {
  std::string hostname;
  int64_t memory_bytes = 0;
  int numa_nodes = 0;
  /// Logical CPUs that this process may use. One CPU per core comes first, hyperthread siblings last, grouped by NUMA
  /// node.
  std::vector<int> cpus;
  /// The number of physical cores that `cpus` cover.
  int cores = 0;
};

/// Discovers the host within the limits of its container. A launcher's binding of this process to some CPUs is ignored,
/// because mpirun binds each of two ranks to one core. Where `allowed` names any of the host's CPUs, `cpus` and `cores`
/// cover those alone. Throws std::runtime_error when hwloc cannot read the host.
HostTopology discover_host(const std::vector<int>& allowed = {});

/// Returns the contiguous share of `host.cpus` for rank `local_rank` of `local_size` ranks on this host. A share has at
/// least one CPU; ranks share CPUs when there are more ranks than CPUs.
std::vector<int> cpus_of_rank(const HostTopology& host, int local_rank, int local_size);

/// Lets the calling thread, and the threads that it starts later, run on `cpus`. Throws std::system_error when refused.
void set_affinity(const std::vector<int>& cpus);

/// Returns the CPUs that the calling thread may run on.
std::vector<int> cpus_of_this_thread();
/// Returns the CPUs that another process may run on. Throws std::system_error when there is no such process.
std::vector<int> cpus_of_process(int process);

/// Returns the NUMA nodes, by the system's numbers, whose memory is next to `cpus`. Empty when they are all nodes of
/// the host, because there is nothing to prefer then. Throws std::runtime_error when hwloc cannot read the host.
std::vector<int> numa_nodes_near(const std::vector<int>& cpus);

/// Returns the NUMA nodes near the PCI device at the address `bus_id` (`0000:3b:00.0`). Empty when they are all nodes
/// of the host, or the system does not say which are near. Throws std::runtime_error when hwloc cannot read the host.
std::vector<int> numa_nodes_near_pci(const std::string& bus_id);

/// Asks the system to take the range's pages from `nodes` while these have memory left. The pages must not have been
/// touched yet. Returns false when the system does not accept such requests, or `nodes` is empty.
bool prefer_numa_nodes(void* data, int64_t bytes, const std::vector<int>& nodes);

}  // namespace spillway
