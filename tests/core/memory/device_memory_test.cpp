#include "core/memory/device_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "core/memory/host_slab.h"
#include "core/out_of_memory.h"

namespace spillway {
namespace {

/// A source of blocks that refuses with an error of its own, as a driver does.
struct ThrowingBlocks final : BlockSource {
  Block* try_acquire(int64_t, Category) override { throw std::runtime_error("another stream"); }
  void return_block(Block*) noexcept override {}
};

TEST(DeviceMemoryTest, WhatTheSourceRefusesStaysUncharged) {
  ThrowingBlocks blocks;
  Ledger ledger("test", 1 << 20);
  DeviceMemory memory(blocks, ledger);
  EXPECT_THROW((void)memory.allocate(1000, Category::other), std::runtime_error);
  EXPECT_THROW((void)memory.try_allocate(1000, Category::other), std::runtime_error);
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(DeviceMemoryTest, MoreThanAnyMachineHasIsRefusedWithoutOverflow) {
  Arena arena(1 << 20);
  Ledger ledger("test");
  DeviceMemory memory(arena, ledger);
  for (int64_t bytes : {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max() - 100, int64_t{-1},
                        std::numeric_limits<int64_t>::min()}) {
    EXPECT_THROW((void)memory.allocate(bytes, Category::other), std::bad_alloc) << bytes;
    EXPECT_THROW((void)memory.try_allocate(bytes, Category::other), std::bad_alloc) << bytes;
    EXPECT_EQ(ledger.used_bytes(), 0) << bytes;
  }
}

TEST(DeviceMemoryTest, SaysWhoAskedForHowManyBytesThatTheMachineHasNot) {
  Arena arena(1 << 20);
  Ledger ledger("test");
  DeviceMemory memory(arena, ledger);
  const OperatorScope scope("aten::conv3d");
  try {
    (void)memory.allocate(3 << 20, Category::other);
    ADD_FAILURE() << "the arena holds 1 MiB";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    for (const char* part : {"[memory test]", "aten::conv3d needs 3.00 MiB", "no memory", "0 B of a budget"})
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
    EXPECT_EQ(error.requested_bytes(), DeviceMemory::charge_of(3 << 20));
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(OutOfMemoryTest, NamesWhoAllocatesWhereTheLibraryTellsNothing) {
  EXPECT_EQ(naming_who_allocates("a test", 7, [] { return 3; }), 3);
  try {
    naming_who_allocates("a test", 7, [] { throw std::bad_alloc(); });
  } catch (const std::bad_alloc& error) {
    EXPECT_STREQ(error.what(), "[memory] a test needs 7 bytes, and the host has no memory for them");
  }
  try {
    naming_who_allocates("a test", 7, [] { throw OutOfMemory("words of its own", 9); });
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(), "words of its own");
    EXPECT_EQ(error.requested_bytes(), 9);
  }
}

TEST(MemoryRangeTest, WhereAddressesAreLimitedThereIsLessMemoryInsteadOfNone) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;  // a sanitizer has reserved terabytes of addresses
    const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 30);
    const rlimit limit{bytes, bytes};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(10);
    try {
      (void)reserve_memory(int64_t{1} << 36);
      ::_exit(10);
    } catch (const std::exception&) {
    }
    try {
      MemoryRange range = reserve_memory_up_to(int64_t{1} << 36);
      std::memset(range.data(), 1, 1 << 20);
      range.data()[range.bytes() - 1] = 1;
      MemoryRange another = reserve_memory_up_to(int64_t{1} << 36);  // some addresses are left
      ::_exit(range.bytes() >= 64 << 20 && another.bytes() >= 16 << 20 ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 10) GTEST_SKIP() << "this system has no limit on addresses";
  EXPECT_EQ(status, 0);
}

/// Returns the kernel's flags of the mapping that holds `address`.
std::string flags_of(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream text(line);
    if (text >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    else if (inside && line.starts_with("VmFlags:"))
      return line;
  }
  return "";
}

TEST(HostSlabTest, ChildrenDoNotShareMemoryThatADiskMayBeWritingTo) {
  HostSlab slab(8 << 20);
  void* data = slab.allocate(1 << 20);
  std::memset(data, 1, 1 << 20);
  const std::string flags = flags_of(data);
  if (flags.empty()) GTEST_SKIP() << "this kernel does not show a mapping's flags";
  EXPECT_NE(flags.find(" dc"), std::string::npos) << flags;
  slab.deallocate(data, 1 << 20);
}

}  // namespace
}  // namespace spillway
