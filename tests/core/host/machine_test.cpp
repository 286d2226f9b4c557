#include "core/host/machine.h"

#include <gtest/gtest.h>
#include <hwloc.h>

#include <fstream>
#include <numeric>

#include "core/error.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

/// A machine with two packages of four cores and four GPUs behind PCIe switches. Two NVSwitches join the GPUs. A fabric
/// adapter sits beside two of them. There are an Ethernet adapter with two ports and a console.
const std::filesystem::path kFourGpus = std::filesystem::path(SPILLWAY_TEST_DATA) / "four_gpus.xml";

/// Returns the message with which read_machine refuses a file with these contents.
std::string refusal_of(const std::string& contents) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "broken.xml";
  std::ofstream(file) << contents;
  try {
    (void)read_machine(file);
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "";
}

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  size_t at = 0, count = 0;
  for (; (at = text.find(from, at)) != std::string::npos; at += to.size(), ++count) text.replace(at, from.size(), to);
  EXPECT_GT(count, 0u) << from;
  return text;
}

Machine machine_from(const std::string& contents) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "machine.xml";
  std::ofstream(file) << contents;
  return read_machine(file);
}

/// Writes the synthetic topology `description` as XML, as hwloc's tools do it.
void export_synthetic(const std::string& description, const std::filesystem::path& file) {
  hwloc_topology_t topology = nullptr;
  ASSERT_EQ(hwloc_topology_init(&topology), 0);
  EXPECT_EQ(hwloc_topology_set_synthetic(topology, description.c_str()), 0);
  EXPECT_EQ(hwloc_topology_load(topology), 0);
  EXPECT_EQ(hwloc_topology_export_xml(topology, file.c_str(), 0), 0);
  hwloc_topology_destroy(topology);
}

}  // namespace

TEST(MachineTest, IsTheOneThatThisRunsOn) {
  const Machine machine = discover_machine();
  EXPECT_FALSE(machine.hostname.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_bytes, 0);
  EXPECT_FALSE(machine.numa_nodes.empty());
  for (const Nic& nic : machine.nics) EXPECT_GE(nic.bits_per_second, 0) << nic.name;
}

TEST(MachineTest, HasPackagesNumaNodesAndCores) {
  const Machine machine = synthetic_machine("package:2 numa:2 core:4 pu:2");
  EXPECT_EQ(machine.cores, 16);
  ASSERT_EQ(machine.packages.size(), 2u);
  ASSERT_EQ(machine.numa_nodes.size(), 4u);
  int64_t bytes = 0;
  for (int node = 0; node < 4; ++node) {
    EXPECT_EQ(machine.numa_nodes[node].number, node);
    EXPECT_EQ(machine.numa_nodes[node].package, node / 2);
    EXPECT_EQ(machine.numa_nodes[node].cores, 4);
    std::vector<int> cpus(8);
    std::iota(cpus.begin(), cpus.end(), 8 * node);
    EXPECT_EQ(machine.numa_nodes[node].cpus, cpus);
    bytes += machine.numa_nodes[node].memory_bytes;
  }
  EXPECT_EQ(machine.memory_bytes, bytes);
  EXPECT_GT(bytes, 0);
}

TEST(MachineTest, CountsProcessorsWhereThereAreNoCores) {
  const Machine machine = synthetic_machine("numa:2 pu:3");
  EXPECT_EQ(machine.cores, 6);
  EXPECT_EQ(machine.numa_nodes.at(1).cores, 3);
  EXPECT_EQ(machine.numa_nodes.at(1).package, -1);
}

TEST(MachineTest, ANodeOverSeveralPackagesIsInNone) {
  const Machine machine = synthetic_machine("numa:1 package:2 core:2 pu:1");
  EXPECT_EQ(machine.packages.size(), 2u);
  ASSERT_EQ(machine.numa_nodes.size(), 1u);
  EXPECT_EQ(machine.numa_nodes[0].package, -1);
  EXPECT_EQ(machine.numa_nodes[0].cores, 4);
}

TEST(MachineTest, MemoryBesideMemoryHasNoCoresOfItsOwn) {
  const Machine machine = synthetic_machine("package:2 [numa(memory=16GiB)] [numa(memory=4GiB)] core:3 pu:1");
  ASSERT_EQ(machine.numa_nodes.size(), 4u);
  int cores = 0, without = 0;
  for (const NumaNode& node : machine.numa_nodes) {
    cores += node.cores;
    without += node.cores == 0;
    EXPECT_GE(node.package, 0);
    EXPECT_EQ(node.cpus.size(), 3u) << "as near as the other's";
  }
  EXPECT_EQ(cores, 6);
  EXPECT_EQ(without, 2);
  EXPECT_EQ(machine.memory_bytes, int64_t{40} << 30);
}

TEST(MachineTest, DescriptionsThatMakeNoMachineAreRefused) {
  EXPECT_THROW((void)synthetic_machine("package:0"), BadRequest);
  EXPECT_THROW((void)synthetic_machine("bananas"), BadRequest);
}

TEST(MachineTest, IsTheSameFromAFileThatHwlocWrote) {
  const testing::TemporaryFolder folder;
  for (const std::string description :
       {"pu:1", "package:2 core:4 pu:2", "numa:3 package:2 core:5 pu:1", "package:2 numa:4 l3:1 core:3 pu:2",
        "package:2 [numa(memory=16GiB)] [numa(memory=4GiB)] core:3 pu:1"}) {
    const auto file = folder.path() / "exported.xml";
    export_synthetic(description, file);
    Machine expected = synthetic_machine(description);
    expected.hostname = read_machine(file).hostname;
    EXPECT_EQ(read_machine(file), expected) << description;
  }
}

TEST(MachineTest, TakesWhatAnotherSystemsEditorSaved) {
  const std::string xml = contents_of(kFourGpus);
  EXPECT_EQ(machine_from("\xEF\xBB\xBF" + replaced(xml, "\n", "\r\n")), machine_from(xml));
}

TEST(MachineTest, KeepsItsNameInAFile) {
  EXPECT_EQ(read_machine(kFourGpus).hostname, "example");
  const auto nameless = replaced(contents_of(kFourGpus), R"(<info name="HostName" value="example"/>)", "");
  EXPECT_EQ(machine_from(nameless).hostname, "machine.xml");
}

TEST(MachineTest, SaysWhichDevicesAreNearWhichMemory) {
  const Machine machine = read_machine(kFourGpus);
  EXPECT_EQ(machine.packages, (std::vector<Package>{{0, "Example CPU 4"}, {1, "Example CPU 4"}}));
  EXPECT_EQ(machine.numa_nodes, (std::vector<NumaNode>{{0, 0, int64_t{64} << 30, 4, {0, 1, 2, 3}},
                                                       {1, 1, int64_t{64} << 30, 4, {4, 5, 6, 7}}}));
  ASSERT_EQ(machine.gpus.size(), 4u) << "a server's console is no GPU";
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(machine.gpus[i].numa, i < 2 ? 0 : 1);
    EXPECT_EQ(machine.gpus[i].package, i < 2 ? 0 : 1);
    EXPECT_EQ(machine.gpus[i].name, "NVIDIA Example 40GB");
    EXPECT_NEAR(machine.gpus[i].pci_bytes_per_second, 15.753846e9, 1e4);
  }
  EXPECT_EQ(machine.gpus[3].bus_id, "0000:84:00.0");
}

TEST(MachineTest, NamesAdaptersAsTheSystemDoes) {
  const Machine machine = read_machine(kFourGpus);
  ASSERT_EQ(machine.nics.size(), 3u);
  EXPECT_EQ(machine.nics[0].interfaces, (std::vector<std::string>{"ib0", "mlx5_0"}));
  EXPECT_EQ(machine.nics[0].name, "Example Fabric Adapter");
  EXPECT_EQ(machine.nics[1].interfaces, std::vector<std::string>{"eth0"});
  EXPECT_EQ(machine.nics[1].name, "8086:1521") << "there are no names in the file";
  EXPECT_EQ(machine.nics[2].bus_id, "0000:20:00.1");
  for (const Nic& nic : machine.nics) EXPECT_EQ(nic.bits_per_second, 0) << "this machine's links are not the file's";
}

TEST(MachineTest, ASwitchIsWhatHasSeveralPortsWithDevices) {
  const Machine machine = read_machine(kFourGpus);
  EXPECT_EQ(machine.gpus[0].pcie_switch, "0000:11:00.0");
  EXPECT_EQ(machine.gpus[1].pcie_switch, "0000:11:00.0");
  EXPECT_EQ(machine.nics[0].pcie_switch, "0000:11:00.0");
  EXPECT_EQ(machine.gpus[2].pcie_switch, "0000:81:00.0");
  EXPECT_EQ(machine.nics[1].pcie_switch, "") << "two functions of one adapter";
}

TEST(MachineTest, NvlinkJoinsGpusAcrossSwitchesThatAreAsOne) {
  const Machine machine = read_machine(kFourGpus);
  for (const Gpu& gpu : machine.gpus) {
    EXPECT_EQ(gpu.nvlink_group, 0);
    EXPECT_EQ(gpu.nvlink_bytes_per_second, 50e9);
  }
}

TEST(MachineTest, NvlinkJoinsOnlyWhatIsLinkedWhereThereAreNoSwitches) {
  const auto pairs = [](const std::string& values) {
    auto text = contents_of(kFourGpus);
    const auto from = text.find(" <distances2hetero"), to = text.find("</topology>");
    return text.replace(from, to - from,
                        R"( <distances2 type="OSDev" nbobjs="4" kind="9" name="NVLinkBandwidth" indexing="gp">
  <indexes length="16">900 901 902 903 </indexes>
  <u64values length=")" + std::to_string(values.size()) +
                            "\">" + values + "</u64values>\n </distances2>\n");
  };
  // The diagonal, which is a GPU's link to itself, is no link.
  const Machine machine = machine_from(pairs("900000 0 25000 0 0 900000 0 0 25000 0 900000 0 0 0 0 900000 "));
  EXPECT_EQ(machine.gpus.at(0).nvlink_group, 0);
  EXPECT_EQ(machine.gpus.at(1).nvlink_group, -1);
  EXPECT_EQ(machine.gpus.at(2).nvlink_group, 0);
  EXPECT_EQ(machine.gpus.at(3).nvlink_group, -1);
  EXPECT_EQ(machine.gpus.at(2).nvlink_bytes_per_second, 25e9);
  const Machine two = machine_from(pairs("0 25000 0 0 25000 0 0 0 0 0 0 25000 0 0 25000 0 "));
  EXPECT_EQ(two.gpus.at(1).nvlink_group, 0);
  EXPECT_EQ(two.gpus.at(2).nvlink_group, 1);
}

TEST(MachineTest, FilesThatDescribeNoneAreRefusedByName) {
  try {
    (void)read_machine("/no/such/machine.xml");
    ADD_FAILURE() << "read a file that is not there";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("'/no/such/machine.xml': No such file"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW((void)read_machine(std::filesystem::temp_directory_path()), BadRequest);
  for (const std::string& contents : {std::string(), std::string("not XML"), std::string("<xml/>"),
                                      std::string(R"(<?xml version="1.0"?><topology version="2.0"></topology>)")}) {
    const std::string refusal = refusal_of(contents);
    EXPECT_NE(refusal.find("broken.xml"), std::string::npos) << contents << " → " << refusal;
    EXPECT_NE(refusal.find("lstopo"), std::string::npos) << contents << " → " << refusal;
  }
}

TEST(MachineTest, ForeignDocumentTypesAndCountsThatOverflowNeverReachHwloc) {
  const std::string whole = contents_of(kFourGpus);
  const std::string type = "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">";
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{type, "<!DOCTYPE a [<!ENTITY b \"c\">]>"},
                                                        {type, "<!DOCTYPE topology SYSTEM \"/etc/passwd\">"},
                                                        {"encoding=\"UTF-8\"", "encoding=\"UTF-7\""},
                                                        {"<topology ", "<!-- a comment --><topology "},
                                                        {"nbobjs=\"", "nbobjs=\"6553"},
                                                        {"nbobjs=\"", "nbobjs=\"-"},
                                                        {"nbobjs=\"", "nbobjs=\"4\" nbobjs=\""},
                                                        {"</topology>", "<![CDATA[x]]></topology>"}})
    EXPECT_NE(refusal_of(replaced(whole, from, to)).find("not as lstopo writes it"), std::string::npos) << to;
}

TEST(MachineTest, NumbersThatMakeLongBitmapsNeverReachHwloc) {
  const std::string whole = contents_of(kFourGpus);
  for (const std::string kind : {"NUMANode", "PU"}) {
    const std::string first = "type=\"" + kind + "\" os_index=\"0\"";
    for (const std::string& wrong :
         {"type=\"" + kind + "\"", "type=\"" + kind + "\" os_index=\"4294967294\"",
          "type=\"" + kind + "\" os_index=\"65536\"", "type=\"" + kind + "\" os_index=\"-1\"",
          std::string("type=\"nUMA\""), std::string("type=\"pu\""), std::string("type=\"&#78;UMANode\""),
          std::string("os_index=\"0\"")})
      EXPECT_NE(refusal_of(replaced(whole, first, wrong)).find("not as lstopo writes it"), std::string::npos) << wrong;
    const Machine high = machine_from(replaced(whole, first, "type=\"" + kind + "\" os_index=\"65535\""));
    EXPECT_GT(high.cores, 0);
  }
}

TEST(MachineTest, ANodeWithAllCpusThatThereCanBeIsRefused) {
  const auto machine = [](const std::string& cpus) {
    std::string text =
        "<topology version=\"2.0\"><object type=\"Machine\" os_index=\"0\" CPUS allowed_cpuset=\"@\" nodeset=\"0x1\" "
        "complete_nodeset=\"0x1\" allowed_nodeset=\"0x1\" gp_index=\"1\"><object type=\"NUMANode\" os_index=\"0\" CPUS "
        "nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"2\" local_memory=\"18446744073709551615\"/><object "
        "type=\"PU\" os_index=\"0\" CPUS nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"3\"/></object></topology>";
    return replaced(replaced(text, "CPUS", "cpuset=\"@\" complete_cpuset=\"@\""), "@", cpus);
  };
  EXPECT_GE(machine_from(machine("0x1")).memory_bytes, 0);
  EXPECT_NE(refusal_of(machine("0xf...f")).find("CPUs of numbers above 65536"), std::string::npos);
}

TEST(MachineTest, AFileThatDoesNotEndIsRefused) {
  EXPECT_THROW((void)read_machine("/dev/zero"), BadRequest);
}

TEST(MachineTest, FilesThatWereCutShortAreRefused) {
  const std::string whole = contents_of(kFourGpus);
  int refused = 0;
  for (size_t length = 0; length < whole.rfind("</topology>"); length += 97) {
    ++refused;
    EXPECT_NE(refusal_of(whole.substr(0, length)), "") << length << " bytes";
  }
  EXPECT_GT(refused, 50);
}

}  // namespace spillway
