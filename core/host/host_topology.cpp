#include "core/host/host_topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "core/host/hwloc_topology.h"

namespace spillway {
namespace {

using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

HwlocTopology load(bool with_devices = false) {
  HwlocTopology topology = new_hwloc_topology(with_devices);
  if (hwloc_topology_load(topology.get()) != 0) throw std::runtime_error("[topology] hwloc cannot read this host");
  return topology;
}

/// Returns the numbers of `nodes`; none when they are all nodes of the host.
std::vector<int> numbers_of(const HwlocTopology& topology, hwloc_const_nodeset_t nodes) {
  if (hwloc_bitmap_isincluded(hwloc_topology_get_topology_nodeset(topology.get()), nodes)) return {};
  std::vector<int> numbers;
  for (int node = hwloc_bitmap_first(nodes); node >= 0; node = hwloc_bitmap_next(nodes, node)) numbers.push_back(node);
  return numbers;
}

/// Removes from `usable` the CPUs that are not `allowed`, unless that would leave none.
void limit(hwloc_bitmap_t usable, const std::vector<int>& allowed) {
  Bitmap set(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  for (int cpu : allowed) hwloc_bitmap_set(set.get(), cpu);
  if (hwloc_bitmap_intersects(usable, set.get())) hwloc_bitmap_and(usable, usable, set.get());
}

}  // namespace

HostTopology discover_host(const std::vector<int>& allowed) {
  HwlocTopology topology = load();
  Bitmap usable(hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology.get())), &hwloc_bitmap_free);
  // `allowed` does not apply when hwloc is told to simulate another host, because that host has CPUs of its own.
  if (hwloc_topology_is_thissystem(topology.get())) limit(usable.get(), allowed);
  HostTopology host;
  char hostname[256] = {};
  ::gethostname(hostname, sizeof hostname - 1);
  host.hostname = hostname;
  host.numa_nodes = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  host.memory_bytes = hwloc_get_root_obj(topology.get())->total_memory;
  if (host.memory_bytes == 0)  // hwloc reads it from /sys, which a container may not have
    host.memory_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  // Some machines, above all virtual ones, do not say which CPUs share a core.
  const auto core = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<int> siblings;
  for (int c = 0; c < hwloc_get_nbobjs_by_type(topology.get(), core); ++c) {
    Bitmap set(hwloc_bitmap_dup(hwloc_get_obj_by_type(topology.get(), core, c)->cpuset), &hwloc_bitmap_free);
    hwloc_bitmap_and(set.get(), set.get(), usable.get());
    int cpu = hwloc_bitmap_first(set.get());
    if (cpu < 0) continue;
    ++host.cores;
    host.cpus.push_back(cpu);
    while ((cpu = hwloc_bitmap_next(set.get(), cpu)) >= 0) siblings.push_back(cpu);
  }
  host.cpus.insert(host.cpus.end(), siblings.begin(), siblings.end());
  if (host.cpus.empty()) throw std::runtime_error("[topology] hwloc sees no CPU that this process may use");
  return host;
}

std::vector<int> cpus_of_rank(const HostTopology& host, int local_rank, int local_size) {
  if (local_size < 1 || local_rank < 0 || local_rank >= local_size)
    throw std::invalid_argument("[topology] local rank " + std::to_string(local_rank) + " is not in 0.." +
                                std::to_string(local_size - 1));
  // Shares are cut from whole cores. No core's siblings go to another rank.
  size_t cores = host.cores, ranks = local_size, rank = local_rank;
  size_t first = rank * cores / ranks, last = std::max((rank + 1) * cores / ranks, first + 1);
  std::vector<int> cpus;
  for (size_t c = first; c < last; ++c) cpus.push_back(host.cpus[c % host.cpus.size()]);
  if (ranks == 1) cpus = host.cpus;
  return cpus;
}

void set_affinity(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    throw std::system_error(errno, std::generic_category(), "[topology] sched_setaffinity");
}

std::vector<int> cpus_of_this_thread() {
  return cpus_of_process(0);
}

std::vector<int> cpus_of_process(int process) {
  cpu_set_t set;
  if (::sched_getaffinity(process, sizeof set, &set) != 0)
    throw std::system_error(errno, std::generic_category(), "[topology] sched_getaffinity");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

std::vector<int> numa_nodes_near(const std::vector<int>& cpus) {
  HwlocTopology topology = load();
  Bitmap near(hwloc_bitmap_alloc(), &hwloc_bitmap_free), nodes(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  for (int cpu : cpus) hwloc_bitmap_set(near.get(), cpu);
  hwloc_cpuset_to_nodeset(topology.get(), near.get(), nodes.get());
  return numbers_of(topology, nodes.get());
}

std::vector<int> numa_nodes_near_pci(const std::string& bus_id) {
  HwlocTopology topology = load(/*with_devices=*/true);
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology.get(), bus_id.c_str());
  return device ? numbers_of(topology, hwloc_get_non_io_ancestor_obj(topology.get(), device)->nodeset)
                : std::vector<int>();
}

bool prefer_numa_nodes(void* data, int64_t bytes, const std::vector<int>& nodes) {
  if (nodes.empty()) return false;
  HwlocTopology topology = load();
  Bitmap set(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  for (int node : nodes) hwloc_bitmap_set(set.get(), node);
  // HWLOC_MEMBIND_STRICT is not set, so that a full node does not end the process.
  return hwloc_set_area_membind(topology.get(), data, bytes, set.get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) ==
         0;
}

}  // namespace spillway
