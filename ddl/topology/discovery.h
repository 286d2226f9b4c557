/// Where levels come from when nobody declares them: what ranks are near inside their hosts, the hosts they share, and
/// how long messages between hosts take.
#pragma once
#include <vector>

#include "core/host/locality.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Latencies a factor of this apart, with none in between, part near hosts from far ones.
inline constexpr double kLatencyGap = 2;

/// Levels inside hosts, as labels for Levels, the nearest first: ranks whose cards NVLink joins, or who share a card;
/// ranks with cards below one PCIe switch; ranks near the same NUMA nodes. `near[r]` is what rank r is near (see
/// nearness_of). Ranks that have such a thing in common are together, also by way of others, and no level parts what
/// the one below joined; a rank near no certain NUMA node joins all of its host.
std::vector<std::vector<int>> labels_inside_hosts(const std::vector<int>& hosts, const std::vector<Nearness>& near);

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

/// Labels for CommOptions::levels: those inside hosts, ranks of a host, hosts near each other. `near` is what this rank
/// is near; of its texts 31 characters count. Gathers, and with three hosts or more measures; all ranks get the same.
/// Groups of hosts depend on what was measured: declare them where runs must repeat each other's sums to the bit.
/// Throws CommError.
std::vector<std::vector<int>> discover_levels(Communicator& comm, const Nearness& near);

}  // namespace spillway::ddl
