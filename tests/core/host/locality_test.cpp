#include "core/host/locality.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "tests/support/refusal.h"

namespace spillway {
namespace {

using testing::expect_refusal;
using Numbers = std::vector<int>;

Machine machine_in(const char* file) {
  return read_machine(std::filesystem::path(SPILLWAY_TEST_DATA) / file);
}

Nearness near_gpu(const Machine& machine, const std::string& bus_id) {
  return nearness_of(machine, {0}, bus_id);
}

Numbers nodes_near(const Machine& machine, const Numbers& cpus) {
  const Nearness near = nearness_of(machine, cpus, "");
  EXPECT_EQ(near.link, "");
  EXPECT_EQ(near.pcie_switch, "");
  return near.numa_nodes;
}

}  // namespace

TEST(NearnessTest, OfARankWithAGpuIsTheGpusWhateverCpusItHas) {
  const Machine machine = machine_in("eight_gpus.xml");
  const Nearness expected{.link = "NVLink 0", .pcie_switch = "0000:51:00.0", .numa_nodes = {1}};
  EXPECT_EQ(near_gpu(machine, "0000:54:00.0"), expected);
  EXPECT_EQ(near_gpu(machine_in("four_gpus.xml"), "0000:13:00.0"),
            (Nearness{.link = "NVLink 0", .pcie_switch = "0000:11:00.0", .numa_nodes = {0}}));
}

TEST(NearnessTest, TakesAddressesAsCudaWritesThem) {
  Machine machine = machine_in("eight_gpus.xml");
  machine.gpus.at(0).bus_id = "0000:af:00.0";
  EXPECT_EQ(near_gpu(machine, "0000:AF:00.0").pcie_switch, "0000:11:00.0");
  EXPECT_NO_THROW(require_in(machine, {}, "0000:AF:00.0"));
}

TEST(NearnessTest, AGpuWithoutNvlinkIsLinkedToItselfAlone) {
  Machine machine = machine_in("eight_gpus.xml");
  machine.gpus.at(1).nvlink_group = -1;
  EXPECT_EQ(near_gpu(machine, machine.gpus[1].bus_id).link, machine.gpus[1].bus_id);
}

TEST(NearnessTest, AGpuThatTheMachineDoesNotShowIsNearNothingElse) {
  const Machine machine = machine_in("eight_gpus.xml");
  EXPECT_EQ(near_gpu(machine, "0000:FE:00.0"), (Nearness{.link = "0000:fe:00.0", .pcie_switch = "", .numa_nodes = {}}));
}

TEST(NearnessTest, AGpuBesideNoCertainNodeIsNearThoseOfItsPackage) {
  Machine machine = synthetic_machine("package:2 numa:2 core:1 pu:1");
  machine.gpus.resize(2);
  machine.gpus[0].bus_id = "0000:01:00.0";
  machine.gpus[0].package = 1;
  machine.gpus[1].bus_id = "0000:02:00.0";
  EXPECT_EQ(near_gpu(machine, "0000:01:00.0").numa_nodes, (Numbers{2, 3}));
  EXPECT_EQ(near_gpu(machine, "0000:02:00.0").numa_nodes, Numbers{}) << "no package either";
}

TEST(NearnessTest, OfARankWithoutAGpuIsTheMemoryNextToItsCpus) {
  const Machine machine = synthetic_machine("package:2 numa:2 core:2 pu:1");
  EXPECT_EQ(nodes_near(machine, {0, 1}), Numbers{0});
  EXPECT_EQ(nodes_near(machine, {7}), Numbers{3});
  EXPECT_EQ(nodes_near(machine, {3, 4}), (Numbers{1, 2}));
  EXPECT_EQ(nodes_near(machine, {99}), Numbers{});
}

TEST(NearnessTest, NodesThatAreAllThereAreAreNotNamed) {
  EXPECT_EQ(nodes_near(synthetic_machine("numa:2 core:2 pu:1"), {1, 2}), Numbers{});
  EXPECT_EQ(nodes_near(synthetic_machine("numa:1 core:2 pu:1"), {1}), Numbers{});
}

TEST(NearnessTest, MemoryBesideMemoryIsNearTheSameCpus) {
  const Machine machine = synthetic_machine("package:2 [numa(memory=16GiB)] [numa(memory=4GiB)] core:3 pu:1");
  const Numbers first = nodes_near(machine, {0, 1, 2}), second = nodes_near(machine, {3});
  EXPECT_EQ(first.size(), 2u);
  EXPECT_EQ(second.size(), 2u);
  EXPECT_NE(first, second);
}

TEST(NearnessTest, WhatIsNotInTheMachineIsNamed) {
  const Machine machine = machine_in("eight_gpus.xml");
  EXPECT_NO_THROW(require_in(machine, {0, 7}, ""));
  EXPECT_NO_THROW(require_in(machine, {99}, "0000:13:00.0"));
  expect_refusal([&] { require_in(machine, {0, 8}, ""); }, {"eight has no CPU 8", "8, from 0 to 7"});
  expect_refusal([&] { require_in(machine, {0}, "0000:FE:00.0"); },
                 {"eight has no GPU 0000:fe:00.0", "0000:13:00.0, 0000:14:00.0, 0000:33:00.0"});
  expect_refusal([] { require_in(synthetic_machine("numa:2 pu:1"), {0}, "0000:01:00.0"); }, {"GPUs there: none"});
  expect_refusal([] { require_in(Machine(), {3}, ""); }, {"no CPU 3", "CPUs there: 0"});
}

}  // namespace spillway
