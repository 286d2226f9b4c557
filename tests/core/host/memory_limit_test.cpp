#include "core/host/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMachine = int64_t{64} << 30;
constexpr const char* kV2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kV1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

/// A folder that stands for `/` of a machine with 64 GiB.
class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override { write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1024 kB\n"); }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  /// Puts the process into a cgroup, under these mounts.
  void place(const std::string& cgroups, const std::string& mounts) const {
    write("proc/self/cgroup", cgroups);
    write("proc/self/mountinfo", "23 1 0:2 / / rw - ext4 /dev/sda rw\n" + mounts);
  }
  void expect(int64_t bytes, const std::string& source) const {
    const MemoryLimit limit = host_memory_limit(root_);
    EXPECT_EQ(limit.bytes, bytes);
    EXPECT_EQ(limit.source, source);
  }
  void expect_machine() const { expect(kMachine, "the machine's memory"); }

  const fs::path root_ = fs::path(testing::TempDir()) / str("memory-limit-", ::getpid());
};

TEST_F(MemoryLimitTest, WithoutCgroupsItIsTheMachines) {
  expect_machine();
  place("0::/\n", "");
  expect_machine();
}

TEST_F(MemoryLimitTest, ANestedGroupObeysTheSmallestAbove) {
  place("0::/user/job/step\n", kV2);
  write("sys/fs/cgroup/user/job/step/memory.max", "max\n");
  expect_machine();
  write("sys/fs/cgroup/user/job/memory.max", "4294967296\n");
  expect(int64_t{4} << 30, "/sys/fs/cgroup/user/job/memory.max");
  write("sys/fs/cgroup/user/memory.max", "1073741824\n");
  expect(1 << 30, "/sys/fs/cgroup/user/memory.max");
  write("sys/fs/cgroup/user/job/step/memory.high", "536870912\n");
  expect(1 << 29, "/sys/fs/cgroup/user/job/step/memory.high");
}

TEST_F(MemoryLimitTest, ANeighborsLimitOrOneAboveTheMachinesDoesNotCount) {
  place("0::/job\n", kV2);
  write("sys/fs/cgroup/other/memory.max", "1024\n");
  write("sys/fs/cgroup/job/below/memory.max", "1024\n");
  write("sys/fs/cgroup/job/memory.max", "68719476737\n");
  expect_machine();
}

TEST_F(MemoryLimitTest, InANamespaceTheMountPointIsTheProcessesOwnGroup) {
  place("0::/\n", kV2);
  write("sys/fs/cgroup/memory.max", "2147483648\n");
  expect(int64_t{2} << 30, "/sys/fs/cgroup/memory.max");
  place("0::/../sibling\n", kV2);  // moved out of its namespace
  expect(int64_t{2} << 30, "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryLimitTest, AContainersMountBeginsAtItsOwnGroup) {
  place("4:memory:/docker/abc/run\n", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1024\n");
  expect(int64_t{2} << 30, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
  write("sys/fs/cgroup/memory/run/memory.limit_in_bytes", "1073741824\n");
  expect(1 << 30, "/sys/fs/cgroup/memory/run/memory.limit_in_bytes");
}

TEST_F(MemoryLimitTest, VersionOneNeedsHierarchicalAccountingToLimitFromAbove) {
  place("5:cpu,memory:/a/b\n0::/elsewhere\n", kV1);
  write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  expect_machine();
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  expect(1 << 30, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
  write("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
  expect_machine();
}

TEST_F(MemoryLimitTest, VersionOneKnowsALimitThatTheMountDoesNotShow) {
  place("4:memory:/docker/abc\n", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 12\nhierarchical_memory_limit 1073741824\ntotal_cache 1\n");
  expect(1 << 30, "/sys/fs/cgroup/memory/memory.stat");
}

TEST_F(MemoryLimitTest, AHybridHostHasBothVersions) {
  place("4:memory:/job\n1:name=systemd:/memory\n0::/job\n",
        std::string(kV1) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  fs::create_directories(root_ / "sys/fs/cgroup/unified/job");  // the controller is version 1's
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4294967296\n");
  expect(int64_t{4} << 30, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes");
  write("sys/fs/cgroup/unified/job/memory.max", "1073741824\n");
  expect(1 << 30, "/sys/fs/cgroup/unified/job/memory.max");
}

TEST_F(MemoryLimitTest, WhatIsNoNumberIsNoLimit) {
  place("0::/job\nnonsense\n", std::string("also nonsense\n") + kV2);
  for (const char* text : {"", "max", "-1", "99999999999999999999999", "a lot"}) {
    write("sys/fs/cgroup/job/memory.max", text);
    expect_machine();
  }
}

TEST(MemoryLimitOfThisHostTest, IsNotAboveTheMachines) {
  const MemoryLimit limit = host_memory_limit();
  EXPECT_GT(limit.bytes, 0);
  EXPECT_LE(limit.bytes, static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE));
}

TEST(ShareForPagesTest, RanksOfAHostTakeEqualPartsAndPinHalf) {
  const MemoryLimit limit{(int64_t{1} << 40) + 12'345, "the machine's memory"};
  for (const bool pinned : {false, true})
    for (const int ranks : {1, 2, 3, 8}) {
      const int64_t all = pinned ? limit.bytes / 2 : limit.bytes;
      const MemoryLimit share = share_for_pages(limit, pinned, ranks);
      EXPECT_LE(ranks * share.bytes, all);
      EXPECT_GT(ranks * (share.bytes + 1), all);
    }
  EXPECT_EQ(share_for_pages(limit, false, 1).source, "the machine's memory");
  EXPECT_EQ(share_for_pages(limit, true, 4).source, "1/8 of the machine's memory");
}

}  // namespace
}  // namespace spillway
