/// Discovery of levels when none are declared. It uses the hardware that ranks are near inside their hosts, the hosts
/// they share, and the latencies between hosts.
#pragma once
#include <vector>

#include "core/host/locality.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// The minimum factor between a latency and the next longer one that parts near hosts from far ones.
inline constexpr double kLatencyGap = 2;

/// Returns levels inside hosts, as labels for Levels, the nearest first. First come ranks whose GPUs NVLink joins, or
/// that share a GPU. Next come ranks with GPUs below one PCIe switch, then ranks near the same NUMA nodes. `near[r]` is
/// the Nearness of rank r (see nearness_of). Ranks that have such a thing in common are together, also by way of other
/// ranks. No level parts ranks that the level below joined. A rank near no certain NUMA node joins all of its host.
std::vector<std::vector<int>> labels_inside_hosts(const std::vector<int>& hosts, const std::vector<Nearness>& near);

/// Returns groups of hosts that are near each other, as labels of hosts, the smallest groups first. Returns none when
/// no host is nearer to some hosts than to others. `seconds[a][b]` is the latency between hosts a and b. Hosts are
/// joined along the shortest latencies (single linkage). The groups joined so far are a level when the next latency
/// that joins anything is at least kLatencyGap times the last one. So noise below that factor makes no groups, and
/// racks of racks are found. Throws BadRequest when the matrix is not square and symmetric with positive latencies off
/// its diagonal.
std::vector<std::vector<int>> host_groups(const std::vector<std::vector<double>>& seconds);

/// Measures the one-way time of a small message between the first ranks of every two hosts; 0 on the diagonal. Hosts
/// are those of comm.hosts(). All ranks call it and get the same numbers. In each of several tournaments every host
/// meets every other one, disjoint pairs at once. The minimum of the tournaments' medians counts, because noise only
/// adds. Cost: hosts·(hosts − 1)/2 times some 100 messages, half as many pairs as hosts at a time. Throws CommError.
std::vector<std::vector<double>> measure_host_latencies(Communicator& comm);

/// Returns labels for CommOptions::levels: levels inside hosts, ranks of a host, hosts near each other. `near` is this
/// rank's Nearness; 31 characters of each of its texts count. Gathers from all ranks, and measures when there are three
/// hosts or more. All ranks get the same labels. Groups of hosts depend on measured latencies. Declare them when runs
/// must repeat each other's sums to the bit. Throws CommError.
std::vector<std::vector<int>> discover_levels(Communicator& comm, const Nearness& near);

}  // namespace spillway::ddl
