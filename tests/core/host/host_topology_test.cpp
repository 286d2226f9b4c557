#include "core/host/host_topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>

#include "core/memory/memory_range.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;

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

TEST(TopologyTest, SharesOutTheAllowedCpusAlone) {
  const HostTopology whole = discover_host();
  const int last = whole.cpus.back();
  EXPECT_EQ(discover_host({last}).cpus, std::vector<int>{last});
  EXPECT_EQ(discover_host({last}).cores, 1);
  EXPECT_EQ(discover_host(whole.cpus).cpus, whole.cpus);
  EXPECT_EQ(discover_host({1023}).cpus, whole.cpus) << "a limit that names no CPU of this host is none";
  EXPECT_EQ(cpus_of_process(::getpid()), cpus_of_this_thread());
}

/// An XML file that hwloc reads instead of the real host while this object lives.
struct PretendedHost {
  explicit PretendedHost(const char* description, const char* how = "HWLOC_SYNTHETIC") : how(how) {
    ::setenv(how, description, 1);
  }
  ~PretendedHost() { ::unsetenv(how); }
  PretendedHost(const PretendedHost&) = delete;
  PretendedHost& operator=(const PretendedHost&) = delete;
  const char* how;
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

TEST(TopologyTest, EveryCpuIsACoreWhereTheSystemNamesNone) {
  PretendedHost pretended("node:2 pu:3");
  const HostTopology host = discover_host();
  EXPECT_EQ(host.cores, 6);
  EXPECT_EQ(host.cpus, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

/// Two nodes, one GPU at the second node, and another GPU that is attached to the whole machine.
constexpr const char* kGpus = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x3" nodeset="0x3"
   complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3"/>
   <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4"/>
  </object>
  <object type="Package" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="5">
   <object type="NUMANode" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="6"/>
   <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="7"/>
   <object type="Bridge" gp_index="8" bridge_type="0-1" depth="0" bridge_pci="0000:[00-3f]">
    <object type="PCIDev" gp_index="9" pci_busid="0000:3b:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0"/>
   </object>
  </object>
  <object type="Bridge" gp_index="10" bridge_type="0-1" depth="0" bridge_pci="0000:[40-ff]">
   <object type="PCIDev" gp_index="11" pci_busid="0000:5e:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0"/>
  </object>
 </object>
</topology>
)";

TEST(TopologyTest, PrefersTheMemoryNextToAGpuOnlyWhereTheSystemSaysWhichThatIs) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "cards.xml";
  std::ofstream(file) << kGpus;
  PretendedHost host(file.c_str(), "HWLOC_XMLFILE");
  EXPECT_EQ(numa_nodes_near_pci("0000:3B:00.0"), std::vector<int>{1}) << "as CUDA writes it";
  EXPECT_TRUE(numa_nodes_near_pci("0000:5e:00.0").empty());
  EXPECT_TRUE(numa_nodes_near_pci("0000:01:00.0").empty());
  EXPECT_TRUE(numa_nodes_near_pci("").empty());
}

TEST(TopologyTest, MemoryWithAPreferenceIsMemory) {
  MemoryRange range = reserve_memory(1 << 20);
  EXPECT_FALSE(prefer_numa_nodes(range.data(), range.bytes(), {}));
  if (!prefer_numa_nodes(range.data(), range.bytes(), {0})) GTEST_SKIP() << "this system binds no memory";
  std::memset(range.data(), 1, static_cast<size_t>(range.bytes()));
  EXPECT_EQ(range.data()[range.bytes() - 1], 1);
}

}  // namespace spillway
