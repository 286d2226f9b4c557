#include "core/memory/own_gpu_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace spillway {
namespace {

constexpr const char* kGpu = "0000:3B:00.0";

class OwnGpuMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { set("3", "700"); }
  void TearDown() override { set("0", nullptr); }
  static void set(const char* others, const char* bytes) {
    ::setenv("FAKE_NVML_PROCESSES", others, 1);
    bytes ? ::setenv("FAKE_NVML_BYTES", bytes, 1) : ::unsetenv("FAKE_NVML_BYTES");
  }
  static std::unique_ptr<OwnGpuMemory> find(const char* gpu = kGpu) {
    return OwnGpuMemory::find(gpu, 500, SPILLWAY_FAKE_NVML);
  }
};

TEST_F(OwnGpuMemoryTest, OtherProcessesAreNotCounted) {
  const auto own = find();
  ASSERT_TRUE(own);
  EXPECT_EQ(own->bytes(), 700);
  set("1000", "900");
  EXPECT_EQ(own->bytes(), 900) << "however many there are";
}

TEST_F(OwnGpuMemoryTest, AProcessThatHasLeftTheListHasNoNumber) {
  const auto own = find();
  ASSERT_TRUE(own);
  set("3", nullptr);
  EXPECT_EQ(own->bytes(), std::nullopt);
  set("3", "18446744073709551615");
  EXPECT_EQ(own->bytes(), std::nullopt) << "the library's word for a number that it may not tell";
}

TEST_F(OwnGpuMemoryTest, WhereTheNumberCannotBeThisProcesssThereIsNone) {
  EXPECT_FALSE(find("0000:01:00.0")) << "no such GPU";
  set("3", "499");
  EXPECT_FALSE(find()) << "fewer bytes than the process knows of";
  set("3", nullptr);
  EXPECT_FALSE(find()) << "the list does not name the process";
  EXPECT_FALSE(OwnGpuMemory::find(kGpu, 0, "libthere-is-none.so")) << "no library";
}

TEST_F(OwnGpuMemoryTest, ANumberThatGrowsWithThisProcesssMemoryIsTrusted) {
  HeldGpuMemory held(find(), {100, 5000});
  EXPECT_EQ(held.bytes({100, 5000}), 700);
  set("3", "1300");
  EXPECT_EQ(held.bytes({600, 9000}), 1300) << "it grew by 500 and libraries' 100";
  EXPECT_EQ(held.bytes({9000, 20000}), 1300) << "it stays trusted";
}

TEST_F(OwnGpuMemoryTest, ANumberOfAnotherProcessIsFoundOutByNotGrowing) {
  HeldGpuMemory held(find(), {100, 5000});  // another process of the host has this process's number
  EXPECT_EQ(held.bytes({100, 5000}), 700);
  EXPECT_EQ(held.bytes({600, 5650}), 1350) << "all processes together grew by 650";
  set("3", "9000");
  EXPECT_EQ(held.bytes({600, 5650}), 1350) << "what the other process takes is not asked for any more";
}

TEST_F(OwnGpuMemoryTest, WithoutANumberAllProcessesAreCounted) {
  HeldGpuMemory held(nullptr, {100, 5000});
  const int64_t first = held.bytes({100, 5000});
  EXPECT_EQ(held.bytes({600, 5900}) - first, 900);
}

}  // namespace
}  // namespace spillway
