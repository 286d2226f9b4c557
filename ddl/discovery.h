/// Where levels come from when nobody declares them: the memory that ranks are near, the hosts they share, and how long
/// messages between hosts take.
#pragma once
#include <vector>

#include "ddl/communicator.h"

namespace spillway::ddl {

/// Latencies a factor of this apart, with none in between, part near hosts from far ones.
inline constexpr double kLatencyGap = 2;

/// Ranks of one host that are near the same NUMA nodes, as labels for Levels. `nodes[r]` are the numbers of those that
/// rank r is near (see numa_nodes_near and numa_nodes_near_pci in core/topology.h); none: all alike, or unknown. Ranks
/// that have a node in common are together, also by way of others; a rank near no certain one joins all of its host.
std::vector<int> numa_labels(const std::vector<int>& hosts, const std::vector<std::vector<int>>& nodes);

/// Groups of hosts that are near each other, as labels of hosts, the smallest groups first, none where no host is
/// nearer to some than to others. `seconds[a][b]` is the latency between hosts a and b. Hosts are joined along the
/// shortest latencies (single linkage). Where the next one that joins anything is kLatencyGap times the last one or
/// more, what is joined so far is a level: so noise below that makes no groups, and racks of racks are found. Throws
/// BadRequest when the matrix is not square and symmetric with positive latencies off its diagonal.
std::vector<std::vector<int>> host_groups(const std::vector<std::vector<double>>& seconds);

/// One way of a small message between the first ranks of every two hosts; 0 on the diagonal. Hosts are those of
/// comm.hosts(). All ranks call it and get the same numbers: in each of several tournaments every host plays every
/// other one, disjoint pairs at once, and the least of the tournaments' medians counts, since noise only adds. Cost:
/// hosts·(hosts − 1)/2 times some 100 messages, half as many pairs as hosts at a time. Throws CommError.
std::vector<std::vector<double>> measure_host_latencies(Communicator& comm);

/// Labels for CommOptions::levels: ranks near the same memory, ranks of a host, hosts near each other. `numa_nodes` are
/// those that this rank is near. Gathers, and with three hosts or more measures; all ranks get the same. Groups of
/// hosts depend on what was measured: declare them where runs must repeat each other's sums to the bit. Throws
/// CommError.
std::vector<std::vector<int>> discover_levels(Communicator& comm, const std::vector<int>& numa_nodes);

}  // namespace spillway::ddl
