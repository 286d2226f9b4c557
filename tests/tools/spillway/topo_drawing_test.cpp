#include "tools/spillway/topo_drawing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "core/host/machine_json.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::tools {
namespace {

using ddl::testing::by_host;
using ddl::testing::dealt;

/// Returns a random machine. Nodes are in a package or in several, and devices are near a node, a package or neither.
Machine random_machine(std::mt19937& random) {
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  const auto one_of = [&](const auto& list) {
    return below(4) == 0 || list.empty() ? -1 : list[random() % list.size()].number;
  };
  Machine machine{.hostname = str("m", below(100)),
                  .cores = 1 + below(64),
                  .memory_bytes = int64_t{1 + below(64)} << 30,
                  .packages = {},
                  .numa_nodes = {},
                  .gpus = {},
                  .nics = {}};
  for (int i = below(3); i > 0; --i) machine.packages.push_back({10 * i, below(2) ? "a processor" : ""});
  for (int i = 1 + below(4); i > 0; --i)
    machine.numa_nodes.push_back({100 * i, one_of(machine.packages), int64_t{below(3)} << 30, below(9), {i, below(9)}});
  int bus = 0;
  const auto place = [&](auto& device) {
    device.bus_id = str("0000:", 10 + bus++, ":00.0");
    device.package = one_of(machine.packages);
    device.numa = one_of(machine.numa_nodes);
    if (below(2)) device.pcie_switch = str("0000:0", below(3), ":00.0");
    device.pci_bytes_per_second = below(3) * 8e9;
  };
  for (int i = below(5); i > 0; --i) {
    place(machine.gpus.emplace_back());
    machine.gpus.back().nvlink_group = below(2) - 1;
    machine.gpus.back().nvlink_bytes_per_second = machine.gpus.back().nvlink_group < 0 ? 0 : 50e9;
  }
  for (int i = below(5); i > 0; --i) {
    place(machine.nics.emplace_back());
    if (below(2)) machine.nics.back().interfaces = {"eth0", "mlx5_0"};
    machine.nics.back().bits_per_second = below(2) * 1e11;
  }
  return machine;
}

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// Returns a map of machines without devices. A host has one node per two ranks.
RankMap map_of(const std::vector<int>& hosts, const std::vector<std::vector<int>>& labels) {
  RankMap map{.levels = ddl::Levels(static_cast<int>(hosts.size()), labels),
              .machines = {},
              .hosts = hosts,
              .cpus = {},
              .numa_nodes = {}};
  for (int host = 0; host <= *std::max_element(hosts.begin(), hosts.end()); ++host)
    map.machines.push_back({.hostname = std::string(1, static_cast<char>('a' + host)),
                            .cores = 4,
                            .memory_bytes = 1 << 30,
                            .packages = {},
                            .numa_nodes = {},
                            .gpus = {},
                            .nics = {}});
  map.cpus.resize(hosts.size());
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    map.numa_nodes.push_back({static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank, hosts[rank])) / 2});
  return map;
}

}  // namespace

TEST(MachineJsonTest, ReadsBackWhatItWrote) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const Machine machine = random_machine(random);
    EXPECT_EQ(machine_from_json(nlohmann::json::parse(to_json(machine).dump())), machine);
  }
}

TEST(MachineJsonTest, RefusesANegativeRate) {
  Machine machine;
  machine.gpus.emplace_back();
  nlohmann::json json = to_json(machine);
  json["gpus"][0]["nvlink_bytes_per_second"] = -1.5;
  EXPECT_THROW(machine_from_json(json), BadRequest);
}

TEST(TopoDrawingTest, EveryNodeAndDeviceIsDrawnOnceWhateverItIsNear) {
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    const Machine machine = random_machine(random);
    const std::string text = draw_machines({machine});
    for (const NumaNode& node : machine.numa_nodes)
      EXPECT_EQ(occurrences(text, str("NUMA node ", node.number)), 1) << text;
    for (const Gpu& gpu : machine.gpus) EXPECT_EQ(occurrences(text, "GPU " + gpu.bus_id), 1) << text;
    for (const Nic& nic : machine.nics) EXPECT_EQ(occurrences(text, "NIC " + nic.bus_id), 1) << text;
  }
}

TEST(TopoDrawingTest, MachinesThatLookAlikeAreDrawnOnce) {
  const Machine one{.hostname = "a",
                    .cores = 2,
                    .memory_bytes = int64_t{4} << 30,
                    .packages = {},
                    .numa_nodes = {{.number = 0, .package = -1, .memory_bytes = int64_t{4} << 30, .cores = 2}},
                    .gpus = {},
                    .nics = {}};
  Machine alike = one, other = one;
  alike.hostname = "c";
  alike.numa_nodes[0].cpus = {4, 5};
  other.hostname = "b";
  other.cores = 1;
  EXPECT_EQ(draw_machines({one, other, alike}),
            "a, c: 2 cores, 4.00 GiB\n└─ NUMA node 0: 2 cores, 4.00 GiB\n"
            "b: 1 core, 4.00 GiB\n└─ NUMA node 0: 2 cores, 4.00 GiB\n");
}

TEST(TopoDrawingTest, RanksAreDrawnBelowTheirMemoryHostsAndRacks) {
  const auto hosts = by_host({4, 2, 2});
  EXPECT_EQ(draw_ranks(map_of(hosts, {{0, 0, 1, 1, 2, 2, 3, 3}, hosts, {0, 0, 0, 0, 0, 0, 1, 1}})),
            "levels (2x2+2)+2\n"
            "└─ 3 hosts\n"
            "   ├─ 2 hosts\n"
            "   │  ├─ host a\n"
            "   │  │  ├─ NUMA node 0: ranks 0-1\n"
            "   │  │  └─ NUMA node 1: ranks 2-3\n"
            "   │  └─ host b: ranks 4-5\n"
            "   └─ host c: ranks 6-7\n");
}

TEST(TopoDrawingTest, RanksOfHostsThatHaveOneEachAreNamedByHost) {
  EXPECT_EQ(draw_ranks(map_of({0, 1}, {})), "levels 2\n└─ 2 hosts\n   ├─ host a: rank 0\n   └─ host b: rank 1\n");
  EXPECT_EQ(draw_ranks(map_of({0}, {})), "1 rank\n");
  EXPECT_EQ(draw_ranks(map_of(dealt({3, 1}), {dealt({3, 1})})),
            "levels 3+1\n└─ 2 hosts\n   ├─ host a: ranks 0, 2-3\n   └─ host b: rank 1\n");
}

TEST(TopoDrawingTest, LevelsSayWhatTheyJoin) {
  const auto hosts = by_host({4, 4});
  const RankMap map = map_of(hosts, {{0, 0, 1, 1, 2, 2, 3, 3}, hosts});
  EXPECT_EQ(joined_by(map, 1), "ranks");
  EXPECT_EQ(joined_by(map, 2), "NUMA nodes");
  EXPECT_EQ(joined_by(map, 3), "hosts");
  EXPECT_EQ(joined_by(map_of({0, 1, 2}, {{0, 0, 1}}), 1), "hosts");
  EXPECT_EQ(joined_by(map_of({0, 1, 2, 3}, {{0, 0, 1, 1}}), 2), "groups of hosts");
  EXPECT_EQ(joined_by(map_of(by_host({4}), {{0, 1, 0, 1}}), 2), "parts of a host");
  EXPECT_EQ(draw_links(map_of({0, 1}, {}), {.levels = {{.latency_seconds = 25e-6, .bytes_per_second = 12.5e6}}}),
            "level 1, between hosts: 25.0 us, 0.0125 GB/s a link\n");
}

TEST(TopoDrawingTest, LatenciesAreATable) {
  EXPECT_EQ(draw_latencies(map_of({0, 1}, {}), {{0, 25e-6}, {25e-6, 0}}),
            "latency between hosts, us\n"
            "               a       b\n"
            "       a       -    25.0\n"
            "       b    25.0       -\n");
}

}  // namespace spillway::tools
