// Tests of device profiles and their files.
#include "runtime/planning/device_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/refusal.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

void expect_refused(const std::string& text, const std::string& part) {
  testing::expect_refusal([&] { (void)parse_profile(text); }, {part});
}

json whole_profile() {
  return json::parse(R"({
    "name": "card", "memory_bytes": 1000, "library_bytes": 10,
    "matrix_flops": 11, "convolution_flops": 12, "convolution_channels": 13, "half_flops": 14, "bytes_per_second": 15,
    "operator_seconds": 0.1, "gap_seconds": 0.2, "library_gap_seconds": 0.3,
    "eigh": [{"side": 64, "seconds": 1}, {"side": 128, "seconds": 2}],
    "copy_out_bytes_per_second": 16, "copy_in_bytes_per_second": 17, "host_bytes_per_second": 18,
    "compute_slowdown": 0.4, "disk_write_bytes_per_second": 19, "disk_read_bytes_per_second": 20,
    "links": [{"latency_seconds": 0.5, "message_seconds": 0.6, "bytes_per_second": 21}],
    "reduce_seconds_per_byte": 0.7})");
}

TEST(DeviceProfileTest, EachFieldIsRead) {
  const DeviceProfile read = parse_profile(whole_profile().dump());
  EXPECT_EQ(read.name, "card");
  EXPECT_EQ(read.memory_bytes, 1000);
  EXPECT_EQ(read.library_bytes, 10);
  const DeviceRates& kernels = read.kernels;
  EXPECT_EQ(kernels.matrix_flops, 11);
  EXPECT_EQ(kernels.convolution_flops, 12);
  EXPECT_EQ(kernels.convolution_channels, 13);
  EXPECT_EQ(kernels.half_flops, 14);
  EXPECT_EQ(kernels.bytes_per_second, 15);
  EXPECT_EQ(kernels.operator_seconds, 0.1);
  EXPECT_EQ(kernels.gap_seconds, 0.2);
  EXPECT_EQ(kernels.library_gap_seconds, 0.3);
  EXPECT_EQ(kernels.eigh_seconds, (decltype(kernels.eigh_seconds){{64, 1}, {128, 2}}));
  EXPECT_EQ(read.copies.out_bytes_per_second, 16);
  EXPECT_EQ(read.copies.in_bytes_per_second, 17);
  EXPECT_EQ(read.host_bytes_per_second, 18);
  EXPECT_EQ(read.copies.compute_slowdown, 0.4);
  EXPECT_EQ(read.copies.to_disk_bytes_per_second, 19);
  EXPECT_EQ(read.copies.from_disk_bytes_per_second, 20);
  ASSERT_EQ(read.network.levels.size(), 1u);
  EXPECT_EQ(read.network.levels[0].latency_seconds, 0.5);
  EXPECT_EQ(read.network.levels[0].message_seconds, 0.6);
  EXPECT_EQ(read.network.levels[0].bytes_per_second, 21);
  EXPECT_EQ(read.network.reduce_seconds_per_byte, 0.7);
}

TEST(DeviceProfileTest, EachFieldMustBeThere) {
  const json whole = whole_profile();
  for (const auto& [name, value] : whole.items()) {
    json lacking = whole;
    lacking.erase(name);
    expect_refused(lacking.dump(), "needs '" + name + "'");
  }
}

TEST(DeviceProfileTest, FieldsOutsideTheirRangeAreNamed) {
  const json profile = whole_profile();
  const auto with = [&](const char* name, json value) {
    json changed = profile;
    changed[name] = std::move(value);
    return changed.dump();
  };
  expect_refused(with("bytes_per_second", 0), "'bytes_per_second'");
  expect_refused(with("matrix_flops", "fast"), "'matrix_flops'");
  expect_refused(with("links", json::array()), "'links'");
  expect_refused(with("speed", 1), "no field 'speed'");
  expect_refused(with("eigh", {{{"side", 64}, {"seconds", 1}}, {{"side", 64}, {"seconds", 2}}}), "ascending");
  expect_refused("[]", "object");
  EXPECT_THROW(parse_profile("{"), BadRequest);
}

TEST(ClusterShapeTest, EachLevelHasItsLinks) {
  const DeviceProfile profile = built_in_profile("h200");
  const auto& links = profile.network.levels;
  const auto levels_of = [&](const char* text, int world) {
    return costs_of(profile, ClusterShape::parse(text, world)).levels;
  };
  EXPECT_EQ(levels_of("", 8), (std::vector{links[0]}));
  EXPECT_EQ(levels_of("4x2", 8), (std::vector{links[0], links[1]}));
  EXPECT_EQ(levels_of("1x8", 8), (std::vector{links[1]}));
  EXPECT_EQ(levels_of("4+2", 6), (std::vector{links[0], links[1]}));
  EXPECT_EQ(levels_of("2x2x2", 8), (std::vector{links[0], links[1], links[1]}));
  EXPECT_TRUE(levels_of("", 1).empty());
}

TEST(ClusterShapeTest, RanksOfAHost) {
  EXPECT_EQ(ClusterShape::parse("", 8).ranks_of_host, 8);
  EXPECT_EQ(ClusterShape::parse("4x2", 8).ranks_of_host, 4);
  EXPECT_EQ(ClusterShape::parse("4+2", 6).ranks_of_host, 4);
  EXPECT_EQ(ClusterShape::parse("1x8", 8).ranks_of_host, 1);
  EXPECT_EQ(ClusterShape::parse("", 1).ranks_of_host, 1);
  EXPECT_THROW(ClusterShape::parse("4x3", 8), BadRequest);
}

TEST(DeviceProfileTest, AnUnknownNameIsRefused) {
  testing::expect_refusal([] { (void)built_in_profile("k80"); }, {"h200"});
}

TEST(DeviceProfileTest, WhatCoresDoTakesLongerWhereRanksTakeTurnsOnThem) {
  DeviceProfile profile = built_in_profile("v100");
  profile.network.levels[0].by_cores = true;
  const DeviceProfile slow = in_turns(profile, 2);
  EXPECT_EQ(slow.copies.in_bytes_per_second, profile.copies.in_bytes_per_second / 2);
  EXPECT_EQ(slow.copies.out_bytes_per_second, profile.copies.out_bytes_per_second / 2);
  EXPECT_EQ(slow.network.reduce_seconds_per_byte, 2 * profile.network.reduce_seconds_per_byte);
  EXPECT_EQ(slow.network.levels[0].bytes_per_second, profile.network.levels[0].bytes_per_second / 2);
  EXPECT_EQ(slow.network.levels[0].latency_seconds, 2 * profile.network.levels[0].latency_seconds);
  EXPECT_EQ(slow.network.levels[0].message_seconds, 2 * profile.network.levels[0].message_seconds);
  EXPECT_EQ(slow.network.levels[1].bytes_per_second, profile.network.levels[1].bytes_per_second) << "a network's";
  EXPECT_EQ(in_turns(profile, 1).copies.in_bytes_per_second, profile.copies.in_bytes_per_second);
  EXPECT_EQ(in_turns(profile, 1).network.levels[0].latency_seconds, profile.network.levels[0].latency_seconds);
  profile.network_is_measured = true;
  const DeviceProfile measured = in_turns(profile, 2);
  EXPECT_EQ(measured.copies.in_bytes_per_second, profile.copies.in_bytes_per_second / 2);
  EXPECT_EQ(measured.network.levels[0].bytes_per_second, profile.network.levels[0].bytes_per_second);
}

TEST(SharedCopiesTest, DevicesShareTheirLinkAndTheirHostsMemory) {
  DeviceProfile profile = built_in_profile("v100");
  profile.copies.out_bytes_per_second = 40e9;
  profile.copies.in_bytes_per_second = 60e9;
  profile.host_bytes_per_second = 100e9;
  const auto rates = [&](const char* text, int world, int devices_per_link) {
    ClusterShape shape = ClusterShape::parse(text, world);
    shape.devices_per_link = devices_per_link;
    const swap::LinkRates copies = shared_copies(profile, shape);
    return std::pair(copies.out_bytes_per_second, copies.in_bytes_per_second);
  };
  EXPECT_EQ(rates("", 1, 1), std::pair(40e9, 60e9));
  EXPECT_EQ(rates("", 1, 2), std::pair(20e9, 30e9)) << "the other device may be another run's";
  EXPECT_EQ(rates("2x4", 8, 1), std::pair(40e9, 50e9)) << "the host's memory";
  EXPECT_EQ(rates("4x2", 8, 1), std::pair(25e9, 25e9));
  EXPECT_EQ(rates("1x8", 8, 1), std::pair(40e9, 60e9)) << "each host has one device";
  profile.host_bytes_per_second = 0;
  EXPECT_EQ(rates("4x2", 8, 1), std::pair(40e9, 60e9)) << "unknown: no limit";
}

}  // namespace
}  // namespace spillway::runtime
