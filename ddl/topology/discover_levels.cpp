#include "ddl/topology/discover_levels.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

using Matrix = std::vector<std::vector<double>>;

constexpr int kTournaments = 3;
constexpr int kMessages = 15;
/// The maximum number of NUMA nodes in Linux. A rank near any node beyond it counts as near no certain node.
constexpr int kMaxNodes = 1024;

/// A Nearness as it is sent.
struct Record {
  std::array<char, 32> link, pcie_switch;
  std::bitset<kMaxNodes> numa_nodes;
};

Record packed(const Nearness& near) {
  Record record{};
  near.link.copy(record.link.data(), record.link.size() - 1);
  near.pcie_switch.copy(record.pcie_switch.data(), record.pcie_switch.size() - 1);
  const bool known = std::all_of(near.numa_nodes.begin(), near.numa_nodes.end(),
                                 [](int node) { return node >= 0 && node < kMaxNodes; });
  for (size_t i = 0; known && i < near.numa_nodes.size(); ++i) record.numa_nodes.set(near.numa_nodes[i]);
  return record;
}

Nearness unpacked(const Record& record) {
  Nearness near{.link = record.link.data(), .pcie_switch = record.pcie_switch.data(), .numa_nodes = {}};
  for (int node = 0; node < kMaxNodes; ++node)
    if (record.numa_nodes.test(node)) near.numa_nodes.push_back(node);
  return near;
}

bool on_one_link(const Nearness& one, const Nearness& other) {
  return !one.link.empty() && one.link == other.link;
}

bool below_one_switch(const Nearness& one, const Nearness& other) {
  return !one.pcie_switch.empty() && one.pcie_switch == other.pcie_switch;
}

bool near_one_node(const Nearness& one, const Nearness& other) {
  const auto& nodes = other.numa_nodes;
  return one.numa_nodes.empty() || nodes.empty() ||
         std::find_first_of(nodes.begin(), nodes.end(), one.numa_nodes.begin(), one.numa_nodes.end()) != nodes.end();
}

void validate(const Matrix& seconds) {
  for (size_t a = 0; a < seconds.size(); ++a) {
    if (seconds[a].size() != seconds.size())
      throw BadRequest(
          str("[ddl] latencies of host ", a, " to ", seconds[a].size(), " hosts; there are ", seconds.size()));
    for (size_t b = 0; b < a; ++b)
      if (!(seconds[a][b] > 0) || std::isinf(seconds[a][b]) || seconds[a][b] != seconds[b][a])
        throw BadRequest(str("[ddl] latencies between hosts ", a, " and ", b, " are ", seconds[a][b], " and ",
                             seconds[b][a], " s; allowed: the same both ways, more than 0"));
  }
}

struct Link {
  double seconds;
  size_t one, other;
};

/// Returns the shortest links that join all hosts, in order of length.
std::vector<Link> joining_links(const Matrix& seconds) {
  std::vector<Link> links;
  std::vector<size_t> group(seconds.size());
  for (size_t a = 0; a < seconds.size(); ++a) {
    group[a] = a;
    for (size_t b = 0; b < a; ++b) links.push_back({seconds[a][b], a, b});
  }
  std::stable_sort(links.begin(), links.end(), [](const Link& a, const Link& b) { return a.seconds < b.seconds; });
  std::vector<Link> joining;
  for (const Link& link : links) {
    const size_t from = group[link.one], to = group[link.other];
    if (from == to) continue;
    std::replace(group.begin(), group.end(), from, to);
    joining.push_back(link);
  }
  return joining;
}

std::vector<int> first_ranks(const std::vector<int>& hosts) {
  std::vector<int> first;
  for (int rank = 0; rank < std::ssize(hosts); ++rank)
    if (hosts[rank] == std::ssize(first)) first.push_back(rank);
  return first;
}

/// Returns the number of rounds by the circle method: in each round every player meets one other, and in all rounds
/// every other. partner_of() returns -1 when a player rests.
int rounds_of(int players) {
  return players % 2 == 0 ? players - 1 : players;
}

int partner_of(int player, int round, int players) {
  const int seats = players + players % 2;
  if (seats < 2) return -1;
  const int last = seats - 1;
  int partner = 0;
  if (player == last)
    partner = round;
  else if (player == round)
    partner = last;
  else
    partner = (2 * round - player + 2 * last) % last;
  return partner < players ? partner : -1;
}

/// Returns half the median of round-trip times. The first round trip does not count, because it waits for the other
/// rank.
double ping(Communicator& comm, int peer, bool begins) {
  std::array<std::byte, 8> out{}, in{};
  std::vector<double> seconds;
  for (int i = 0; i <= kMessages; ++i) {
    const auto start = Clock::now();
    for (const bool sends : {begins, !begins}) {
      Request request = sends ? comm.send(peer, Tag::blob, out) : comm.receive(peer, Tag::blob, in);
      comm.wait({&request, 1}, {.collective = "latency between hosts", .stage = 1});
    }
    seconds.push_back(seconds_since(start));
  }
  std::nth_element(seconds.begin() + 1, seconds.begin() + 1 + kMessages / 2, seconds.end());
  return std::max(1e-9, seconds[1 + kMessages / 2] / 2);
}

}  // namespace

std::vector<std::vector<int>> labels_inside_hosts(const std::vector<int>& hosts, const std::vector<Nearness>& near) {
  if (hosts.size() != near.size())
    throw BadRequest(str("[ddl] what ", near.size(), " ranks are near; there are ", hosts.size()));
  std::vector<int> labels(hosts.size());
  std::iota(labels.begin(), labels.end(), 0);
  std::vector<std::vector<int>> levels;
  for (const auto are_near : {on_one_link, below_one_switch, near_one_node}) {
    for (size_t a = 0; a < hosts.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        const int one = labels[a], other = labels[b];
        if (one != other && hosts[a] == hosts[b] && are_near(near[a], near[b]))
          std::replace(labels.begin(), labels.end(), one, other);
      }
    levels.push_back(labels);
  }
  return levels;
}

std::vector<std::vector<int>> host_groups(const Matrix& seconds) {
  validate(seconds);
  std::vector<int> group(seconds.size());
  std::iota(group.begin(), group.end(), 0);
  std::vector<std::vector<int>> levels;
  double last = 0;
  for (const Link& link : joining_links(seconds)) {
    if (last > 0 && link.seconds >= kLatencyGap * last) levels.push_back(group);
    last = link.seconds;
    std::replace(group.begin(), group.end(), int{group[link.one]}, int{group[link.other]});
  }
  return levels;
}

Matrix measure_host_latencies(Communicator& comm) {
  const std::vector<int> first = first_ranks(comm.hosts());
  const int count = std::ssize(first);
  const int host = comm.hosts()[comm.rank()];
  std::vector<double> own(first.size(), 0);
  barrier(comm);
  if (comm.rank() == first[host])
    for (int game = 0; game < kTournaments * rounds_of(count); ++game) {
      const int partner = partner_of(host, game % rounds_of(count), count);
      if (partner < 0) continue;
      const double seconds = ping(comm, first[partner], host < partner);
      double& least = own[partner];
      if (host < partner) least = least == 0 ? seconds : std::min(least, seconds);
    }
  std::vector<double> all(own.size() * comm.size());
  allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  Matrix result(first.size(), std::vector<double>(first.size(), 0));
  for (size_t a = 0; a < first.size(); ++a)
    for (size_t b = a + 1; b < first.size(); ++b) result[a][b] = result[b][a] = all[first[a] * first.size() + b];
  return result;
}

std::vector<std::vector<int>> discover_levels(Communicator& comm, const Nearness& near) {
  const Record own = packed(near);
  std::vector<Record> all(comm.size());
  allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<Nearness> of_ranks;
  for (const Record& record : all) of_ranks.push_back(unpacked(record));
  auto labels = labels_inside_hosts(comm.hosts(), of_ranks);
  labels.push_back(comm.hosts());
  if (first_ranks(comm.hosts()).size() < 3) return labels;  // fewer than three hosts: no latencies to compare
  for (const auto& groups : host_groups(measure_host_latencies(comm))) {
    auto& level = labels.emplace_back();
    for (const int host : comm.hosts()) level.push_back(groups[host]);
  }
  return labels;
}

}  // namespace spillway::ddl
