#include "ddl/topology/discover_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/distant_transport.h"
#include "tests/support/ddl/shapes.h"

namespace spillway::ddl {
namespace {

using testing::by_host;
using testing::dealt;
using Matrix = std::vector<std::vector<double>>;
using Labels = std::vector<int>;

/// Returns the labels renumbered 0, 1, 2, … in order of first appearance.
Labels ordered(const Labels& labels) {
  std::map<int, int> known;
  Labels result;
  for (const int label : labels) result.push_back(known.emplace(label, static_cast<int>(known.size())).first->second);
  return result;
}

std::vector<Labels> ordered(std::vector<Labels> levels) {
  for (Labels& level : levels) level = ordered(level);
  return levels;
}

Nearness near_node(const std::vector<int>& nodes) {
  return {.link = {}, .pcie_switch = {}, .numa_nodes = nodes};
}

std::vector<int> any_order(size_t size, std::mt19937& random) {
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// Returns the nearness of ranks that compute on the CPUs of the given NUMA nodes.
std::vector<Nearness> near_nodes(const std::vector<std::vector<int>>& nodes) {
  std::vector<Nearness> near;
  for (const auto& of_rank : nodes) near.push_back(near_node(of_rank));
  return near;
}

Labels numa_labels(const std::vector<int>& hosts, const std::vector<std::vector<int>>& nodes) {
  return ordered(labels_inside_hosts(hosts, near_nodes(nodes)).back());
}

Machine machine_in(const char* file) {
  return read_machine(std::filesystem::path(SPILLWAY_TEST_DATA) / file);
}

Machine without_nvlink(Machine machine) {
  for (Gpu& gpu : machine.gpus) gpu.nvlink_group = -1;
  return machine;
}

/// Returns the levels of a host with one rank for each of the machine's GPUs.
Levels levels_inside(const Machine& machine) {
  std::vector<Nearness> near;
  for (const Gpu& gpu : machine.gpus) near.push_back(nearness_of(machine, {}, gpu.bus_id));
  return Levels(static_cast<int>(near.size()), labels_inside_hosts(by_host({static_cast<int>(near.size())}), near));
}

/// Returns the latencies between hosts. Two hosts have the latency of the first level of `levels` that joins them.
/// Hosts that none joins have the last latency. Each latency is longer by up to the fraction `noise`.
Matrix latencies(const std::vector<Labels>& levels, const std::vector<double>& seconds, double noise,
                 std::mt19937& random) {
  std::uniform_real_distribution<double> factor(1, 1 + noise);
  const size_t count = levels.front().size();
  Matrix matrix(count, std::vector<double>(count));
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < a; ++b) {
      size_t level = 0;
      while (level < levels.size() && levels[level][a] != levels[level][b]) ++level;
      matrix[a][b] = matrix[b][a] = seconds[level] * factor(random);
    }
  return matrix;
}

/// The oracle for host groups. Two hosts are as near as the longest link of the best path between them. A group ends
/// where the next such distance is at least twice the one before. The hosts within the shorter distance are the group.
std::vector<Labels> groups_by_best_ways(Matrix ways) {
  const size_t count = ways.size();
  for (size_t via = 0; via < count; ++via)
    for (size_t a = 0; a < count; ++a)
      for (size_t b = 0; b < count; ++b)
        if (a != b)
          ways[a][b] = std::min(ways[a][b], std::max(a == via ? 0 : ways[a][via], b == via ? 0 : ways[via][b]));
  std::set<double> distances;
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < a; ++b) distances.insert(ways[a][b]);
  std::vector<Labels> levels;
  for (auto next = distances.begin(); next != distances.end(); ++next) {
    if (next == distances.begin() || *next < 2 * *std::prev(next)) continue;
    Labels& level = levels.emplace_back(count);
    for (size_t a = 0; a < count; ++a)
      for (level[a] = 0; a != static_cast<size_t>(level[a]) && ways[a][static_cast<size_t>(level[a])] >= *next;)
        ++level[a];
  }
  return levels;
}

/// Returns every rank's labels. Pairs of hosts in different racks are twelve times as far apart.
std::vector<std::vector<Labels>> discovered(const std::vector<int>& hosts, const std::vector<int>& rack_of_host,
                                            const std::vector<std::vector<int>>& nodes) {
  ThreadWorld world(hosts);
  std::vector<std::vector<Labels>> labels(hosts.size());
  std::vector<std::thread> threads;
  const auto rack = [&](int rank) { return rack_of_host[static_cast<size_t>(hosts[static_cast<size_t>(rank)])]; };
  for (int rank = 0; rank < world.size(); ++rank)
    threads.emplace_back([&, rank] {
      Communicator comm(std::make_unique<testing::DistantTransport>(world.transport(rank), [&rack, rank](int peer) {
        return std::chrono::microseconds(rack(peer) == rack(rank) ? 1000 : 12000);
      }));
      EXPECT_NO_THROW(labels[static_cast<size_t>(rank)] =
                          discover_levels(comm, near_node(nodes[static_cast<size_t>(rank)])));
    });
  for (std::thread& thread : threads) thread.join();
  return labels;
}

}  // namespace

TEST(LabelsInsideHostsTest, JoinRanksOfAHostThatAreNearTheSameMemory) {
  EXPECT_EQ(numa_labels({0, 0, 0, 0}, {{0}, {0}, {1}, {1}}), (Labels{0, 0, 1, 1}));
  EXPECT_EQ(numa_labels({0, 1, 0, 1}, {{0}, {0}, {0}, {1}}), (Labels{0, 1, 0, 2}));
}

TEST(LabelsInsideHostsTest, JoinRanksThatShareANodeAlsoByWayOfOthers) {
  EXPECT_EQ(numa_labels({0, 0, 0, 0}, {{0, 1}, {2, 3}, {1, 0}, {3}}), (Labels{0, 1, 0, 1}));
  EXPECT_EQ(numa_labels({0, 0, 0, 0}, {{0}, {1}, {2}, {0, 1}}), (Labels{0, 0, 1, 0}));
}

TEST(LabelsInsideHostsTest, ARankNearNoCertainNodeJoinsAllOfItsHostAndNoOther) {
  EXPECT_EQ(numa_labels({0, 0, 0, 1, 1}, {{0}, {}, {1}, {0}, {1}}), (Labels{0, 0, 0, 1, 2}));
  EXPECT_EQ(numa_labels({0, 0}, {{}, {}}), (Labels{0, 0}));
  EXPECT_TRUE(numa_labels({}, {}).empty());
  EXPECT_THROW((void)labels_inside_hosts({0, 0}, {{}}), BadRequest);
}

TEST(LabelsInsideHostsTest, AnNvswitchMakesOneGroupAcrossSwitchesAndMemory) {
  EXPECT_EQ(levels_inside(machine_in("eight_gpus.xml")).shape(), "8");
  EXPECT_EQ(levels_inside(machine_in("four_gpus.xml")).shape(), "4");
}

TEST(LabelsInsideHostsTest, WithoutNvlinkGpusBelowASwitchAreTogetherThenThoseBesideANode) {
  const Machine machine = without_nvlink(machine_in("eight_gpus.xml"));
  const Levels levels = levels_inside(machine);
  EXPECT_EQ(levels.shape(), "2x2x2");
  EXPECT_EQ(levels.joining(0, 1), 1) << "below one switch";
  EXPECT_EQ(levels.joining(0, 2), 2) << "beside one node";
  EXPECT_EQ(levels.joining(0, 4), 3);
}

TEST(LabelsInsideHostsTest, ASwitchForEachNodeAddsNoLevel) {
  Machine machine = without_nvlink(machine_in("eight_gpus.xml"));
  for (Gpu& gpu : machine.gpus) gpu.pcie_switch = str("0000:0", gpu.numa, ":00.0");
  EXPECT_EQ(levels_inside(machine).shape(), "4x2");
  for (Gpu& gpu : machine.gpus) gpu.pcie_switch.clear();
  EXPECT_EQ(levels_inside(machine).shape(), "4x2") << "no switches, but nodes";
  for (Gpu& gpu : machine.gpus) gpu.numa = gpu.package = -1;
  EXPECT_EQ(levels_inside(machine).shape(), "8") << "nothing is known";
}

TEST(LabelsInsideHostsTest, NvlinkAcrossSwitchesIsNotPartedByThem) {
  Machine machine = without_nvlink(machine_in("four_gpus.xml"));
  machine.gpus[0].nvlink_group = machine.gpus[2].nvlink_group = 0;
  const Levels levels = levels_inside(machine);
  EXPECT_EQ(levels.shape(), "2+1+1");
  EXPECT_EQ(levels.joining(0, 2), 1);
  EXPECT_EQ(levels.joining(0, 1), 2);
}

TEST(LabelsInsideHostsTest, GpusOfTwoHostsHaveNothingInCommon) {
  const Machine machine = machine_in("four_gpus.xml");
  std::vector<Nearness> near;
  for (int rank = 0; rank < 4; ++rank) near.push_back(nearness_of(machine, {}, machine.gpus[rank / 2].bus_id));
  const auto hosts = dealt({2, 2});
  for (const Labels& level : labels_inside_hosts(hosts, near)) EXPECT_EQ(ordered(level), hosts);
}

TEST(LabelsInsideHostsTest, RanksThatShareAGpuAreNearest) {
  const Machine machine = without_nvlink(machine_in("four_gpus.xml"));
  std::vector<Nearness> near;
  for (const size_t gpu : {0, 0, 1, 1}) near.push_back(nearness_of(machine, {}, machine.gpus[gpu].bus_id));
  EXPECT_EQ(Levels(4, labels_inside_hosts({0, 0, 0, 0}, near)).shape(), "2x2");
}

TEST(LabelsInsideHostsTest, RanksOnCpusAreTogetherByMemoryAlone) {
  const Machine machine = synthetic_machine("package:2 numa:1 core:4 pu:1");
  std::vector<Nearness> near;
  for (const int cpu : {0, 2, 4, 6}) near.push_back(nearness_of(machine, {cpu, cpu + 1}, ""));
  EXPECT_EQ(Levels(4, labels_inside_hosts({0, 0, 0, 0}, near)).shape(), "2x2");
}

/// Compares labels with an oracle. Two ranks are together on a level where a path of pairs leads from one to the other.
/// Each pair has something in common on that level or on one below.
TEST(LabelsInsideHostsTest, FollowEveryWayOverWhatRanksHaveInCommon) {
  std::mt19937 random(5);
  const auto one_of = [&](const char* text) { return random() % 3 == 0 ? std::string() : str(text, random() % 3); };
  for (int round = 0; round < 500; ++round) {
    const size_t size = 1 + random() % 10;
    std::vector<int> hosts(size);
    std::vector<Nearness> near(size);
    for (size_t rank = 0; rank < size; ++rank) {
      hosts[rank] = static_cast<int>(random() % 3);
      near[rank] = {.link = one_of("card "), .pcie_switch = one_of("switch "), .numa_nodes = {}};
      if (random() % 8 > 0) near[rank].numa_nodes = {static_cast<int>(random() % 4)};
    }
    hosts = ordered(hosts);
    const auto labels = labels_inside_hosts(hosts, near);
    ASSERT_EQ(labels.size(), 3u);
    Matrix ways(size, std::vector<double>(size));
    for (size_t a = 0; a < size; ++a)
      for (size_t b = 0; b < size; ++b) {
        const Nearness &one = near[a], &other = near[b];
        const bool memory = one.numa_nodes.empty() || other.numa_nodes.empty() || one.numa_nodes == other.numa_nodes;
        ways[a][b] = 3;
        if (hosts[a] == hosts[b] && memory) ways[a][b] = 2;
        if (hosts[a] == hosts[b] && !one.pcie_switch.empty() && one.pcie_switch == other.pcie_switch) ways[a][b] = 1;
        if (a == b || (hosts[a] == hosts[b] && !one.link.empty() && one.link == other.link)) ways[a][b] = 0;
      }
    for (size_t via = 0; via < size; ++via)
      for (size_t a = 0; a < size; ++a)
        for (size_t b = 0; b < size; ++b) ways[a][b] = std::min(ways[a][b], std::max(ways[a][via], ways[via][b]));
    for (size_t level = 0; level < 3; ++level)
      for (size_t a = 0; a < size; ++a)
        for (size_t b = 0; b < size; ++b)
          EXPECT_EQ(labels[level][a] == labels[level][b], ways[a][b] <= static_cast<double>(level))
              << "round " << round;
    EXPECT_NO_THROW(Levels(static_cast<int>(size), {labels[0], labels[1], labels[2], hosts}));
  }
}

TEST(HostGroupsTest, AreNoneWhereAllAreAlike) {
  EXPECT_TRUE(host_groups({}).empty());
  EXPECT_TRUE(host_groups({{0}}).empty());
  EXPECT_TRUE(host_groups({{0, 5}, {5, 0}}).empty()) << "two hosts are as near as they are";
  std::mt19937 random(3);
  for (int hosts = 3; hosts < 12; ++hosts) {
    const std::vector<Labels> alone{Labels(static_cast<size_t>(hosts), 0)};
    EXPECT_TRUE(host_groups(latencies(alone, {30e-6, 0}, 0, random)).empty());
    EXPECT_TRUE(host_groups(latencies(alone, {30e-6, 0}, 0.9, random)).empty()) << hosts << " hosts with noise";
  }
}

TEST(HostGroupsTest, AreFoundWhereLatenciesHaveAGap) {
  EXPECT_EQ(ordered(host_groups({{0, 9, 1}, {9, 0, 8}, {1, 8, 0}})), (std::vector<Labels>{{0, 1, 0}}));
  EXPECT_TRUE(host_groups({{0, 1, 1.99}, {1, 0, 1.99}, {1.99, 1.99, 0}}).empty());
  EXPECT_EQ(ordered(host_groups({{0, 1, 2}, {1, 0, 2}, {2, 2, 0}})), (std::vector<Labels>{{0, 0, 1}}));
}

TEST(HostGroupsTest, AChainOfNeighboursIsOneGroup) {
  // In the chain 0 – 1 – 2 – 3, each host is twice as far from the one after its neighbor.
  EXPECT_TRUE(host_groups({{0, 1, 2, 3}, {1, 0, 1, 2}, {2, 1, 0, 1}, {3, 2, 1, 0}}).empty());
}

TEST(HostGroupsTest, AreRacksAndRacksOfRacksDespiteNoiseInAnyOrder) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const size_t racks = 4 + random() % 3, hosts = racks * (2 + random() % 3);
    const auto order = any_order(hosts, random);
    std::vector<Labels> expected(2, Labels(hosts));
    for (size_t host = 0; host < hosts; ++host) {
      const size_t place = static_cast<size_t>(order[host]);
      expected[0][place] = static_cast<int>(host % racks);
      expected[1][place] = static_cast<int>(host % racks % 2);
    }
    const Matrix matrix = latencies(expected, {10e-6, 30e-6, 90e-6}, 0.4, random);
    EXPECT_EQ(ordered(host_groups(matrix)), ordered(expected)) << "round " << round;
  }
}

TEST(HostGroupsTest, AreThoseOfTheBestWaysBetweenHosts) {
  std::mt19937 random(17);
  int with_groups = 0;
  for (int round = 0; round < 500; ++round) {
    const size_t hosts = 1 + random() % 9;
    Matrix matrix(hosts, std::vector<double>(hosts));
    for (size_t a = 0; a < hosts; ++a)
      for (size_t b = 0; b < a; ++b) matrix[a][b] = matrix[b][a] = static_cast<double>(1 + random() % 40);
    const auto found = host_groups(matrix);
    EXPECT_EQ(ordered(found), ordered(groups_by_best_ways(matrix))) << "round " << round;
    EXPECT_NO_THROW(Levels(static_cast<int>(hosts), found));
    with_groups += !found.empty();
  }
  EXPECT_GT(with_groups, 100);
}

TEST(HostGroupsTest, RefuseWhatIsNoMatrixOfLatencies) {
  EXPECT_THROW((void)host_groups({{0, 1}}), BadRequest);
  EXPECT_THROW((void)host_groups({{0, 1}, {2, 0}}), BadRequest);
  EXPECT_THROW((void)host_groups({{0, 0}, {0, 0}}), BadRequest);
  EXPECT_THROW((void)host_groups({{0, -1}, {-1, 0}}), BadRequest);
  EXPECT_THROW((void)host_groups({{0, NAN}, {NAN, 0}}), BadRequest);
  EXPECT_THROW((void)host_groups({{0, INFINITY}, {INFINITY, 0}}), BadRequest);
}

TEST(DiscoverLevelsTest, MeasuresEveryPairOfHostsAndTellsEveryRankTheSame) {
  for (const auto& widths :
       std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1, 1}, {1, 2, 1, 2}, {1, 1, 1, 1, 1, 1, 1}}) {
    const auto hosts = dealt(widths);
    ThreadWorld world(hosts);
    std::mutex mutex;
    std::vector<Matrix> all;
    run_ranks(world, [&](Communicator& comm) {
      const Matrix own = measure_host_latencies(comm);
      const std::lock_guard lock(mutex);
      all.push_back(own);
    });
    ASSERT_EQ(all.size(), hosts.size());
    for (const Matrix& matrix : all) EXPECT_EQ(matrix, all.front());
    ASSERT_EQ(all.front().size(), widths.size());
    for (size_t a = 0; a < widths.size(); ++a)
      for (size_t b = 0; b < widths.size(); ++b) {
        EXPECT_EQ(all.front()[a][b] > 0, a != b);
        EXPECT_EQ(all.front()[a][b], all.front()[b][a]);
      }
  }
}

TEST(DiscoverLevelsTest, FindsMemoryThenHostsThenRacks) {
  const auto hosts = dealt({2, 2, 2, 1});
  std::vector<std::vector<int>> nodes(hosts.size());
  for (size_t rank = 0; rank < hosts.size(); ++rank) nodes[rank] = {rank < 4 ? 0 : 1};
  const Labels racks{0, 1, 0, 1};
  const auto all = discovered(hosts, racks, nodes);
  for (const auto& labels : all) {
    EXPECT_EQ(labels, all.front()) << "ranks disagree";
    ASSERT_GE(labels.size(), 5u);
    EXPECT_EQ(labels[3], hosts);
    Labels of_rank;
    for (const int host : hosts) of_rank.push_back(racks[static_cast<size_t>(host)]);
    EXPECT_EQ(ordered(labels.back()), ordered(of_rank));
  }
  const Levels levels(static_cast<int>(hosts.size()), all.front());
  EXPECT_EQ(levels.joining(0, 1), levels.count()) << "hosts in two racks";
  EXPECT_LT(levels.joining(0, 2), levels.count());
  EXPECT_EQ(levels.joining(0, 4), 1);
}

TEST(DiscoverLevelsTest, HostsWithoutMemoryOfTheirOwnAreTheOnlyLevelOfTwo) {
  const auto hosts = by_host({2, 1});
  ThreadWorld world(hosts);
  run_ranks(world, [&](Communicator& comm) {
    const auto shape = [&](const std::vector<int>& nodes) {
      return Levels(3, discover_levels(comm, near_node(nodes))).shape();
    };
    EXPECT_EQ(shape({}), "2+1");
    EXPECT_EQ(shape({comm.rank()}), "2+1") << "a node each joins nothing";
    EXPECT_EQ(shape({comm.rank(), 100000}), "2+1");
  });
}

TEST(DiscoverLevelsTest, RanksNearTheSameMemoryAreTogetherFirst) {
  ThreadWorld world(by_host({4, 2}));
  run_ranks(world, [&](Communicator& comm) {
    const Levels levels(6, discover_levels(comm, near_node({comm.rank() % 2})));
    EXPECT_EQ(levels.joining(0, 2), 1);
    EXPECT_EQ(levels.joining(0, 1), 2);
    EXPECT_EQ(levels.joining(1, 5), 3);
  });
}

TEST(DiscoverLevelsTest, EveryRankLearnsWhatTheOthersGpusAreNear) {
  const Machine linked = machine_in("eight_gpus.xml"), machine = without_nvlink(linked);
  ThreadWorld world(dealt({8, 8}));
  run_ranks(world, [&](Communicator& comm) {
    const std::string& bus_id = machine.gpus[static_cast<size_t>(comm.local_rank())].bus_id;
    const Levels levels(16, discover_levels(comm, nearness_of(machine, {}, bus_id)));
    EXPECT_EQ(levels.shape(), "2x2x2x2");
    EXPECT_EQ(levels.joining(0, 2), 1);
    EXPECT_EQ(levels.joining(0, 1), 4);
    EXPECT_EQ(Levels(16, discover_levels(comm, nearness_of(linked, {}, bus_id))).shape(), "8x2");
  });
}

TEST(DiscoverLevelsTest, ARankAloneHasNoLevels) {
  EXPECT_EQ(Levels(1, discover_levels(*self_communicator(), near_node({0}))).count(), 0);
}

}  // namespace spillway::ddl
