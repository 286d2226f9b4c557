#include "core/topology.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>

#include "core/memory_range.h"

namespace spillway {

TEST(TopologyTest, SeesThisHost) {
  HostTopology host = discover_host();
  EXPECT_GE(host.cores, 1);
  EXPECT_GE(host.cpus.size(), static_cast<size_t>(host.cores));
  EXPECT_GT(host.memory_bytes, 0);
  EXPECT_FALSE(host.hostname.empty());
}

TEST(TopologyTest, CutsCoresIntoDisjointSharesOfNearlyEqualSize) {
  HostTopology host;
  host.cores = 8;
  for (int i = 0; i < 8; ++i) host.cpus.push_back(i);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    std::set<int> seen;
    size_t total = 0;
    for (int r = 0; r < ranks; ++r) {
      auto cpus = cpus_of_rank(host, r, ranks);
      EXPECT_LE(cpus.size(), static_cast<size_t>(8 / ranks + 1));
      seen.insert(cpus.begin(), cpus.end());
      total += cpus.size();
    }
    EXPECT_EQ(seen.size(), 8u);
    EXPECT_EQ(total, 8u);
  }
}

TEST(TopologyTest, SharesCoresWhenThereAreMoreRanks) {
  HostTopology host;
  host.cores = 2;
  host.cpus = {0, 1};
  for (int r = 0; r < 5; ++r) EXPECT_EQ(cpus_of_rank(host, r, 5).size(), 1u);
  EXPECT_THROW(cpus_of_rank(host, 5, 5), std::invalid_argument);
}

TEST(TopologyTest, SeesTheCpusThatThisThreadMayUse) {
  const auto before = cpus_of_this_thread();
  ASSERT_FALSE(before.empty());
  set_affinity({before.back()});
  EXPECT_EQ(cpus_of_this_thread(), std::vector<int>{before.back()});
  set_affinity(before);
}

/// hwloc describes this host instead of the real one while it lives.
struct PretendedHost {
  explicit PretendedHost(const char* synthetic) { ::setenv("HWLOC_SYNTHETIC", synthetic, 1); }
  ~PretendedHost() { ::unsetenv("HWLOC_SYNTHETIC"); }
};

TEST(TopologyTest, PrefersTheMemoryNextToTheCpusOnlyWhereThereIsOther) {
  {
    PretendedHost host("node:2 core:2 pu:1");
    EXPECT_EQ(numa_nodes_near({0, 1}), std::vector<int>{0});
    EXPECT_EQ(numa_nodes_near({3}), std::vector<int>{1});
    EXPECT_TRUE(numa_nodes_near({1, 2}).empty());
  }
  PretendedHost host("node:1 core:4 pu:1");
  EXPECT_TRUE(numa_nodes_near({0}).empty());
}

TEST(TopologyTest, MemoryWithAPreferenceIsMemory) {
  MemoryRange range = reserve_memory(1 << 20);
  EXPECT_FALSE(prefer_numa_nodes(range.data(), range.bytes(), {}));
  if (!prefer_numa_nodes(range.data(), range.bytes(), {0})) GTEST_SKIP() << "this system binds no memory";
  std::memset(range.data(), 1, static_cast<size_t>(range.bytes()));
  EXPECT_EQ(range.data()[range.bytes() - 1], 1);
}

}  // namespace spillway
