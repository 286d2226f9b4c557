#include "core/topology.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

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

}  // namespace spillway
