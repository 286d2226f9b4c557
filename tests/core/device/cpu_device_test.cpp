// A test of CpuDevice. It is only one, because a process installs the allocator once.
#include "core/device/cpu_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace spillway {
namespace {

TEST(CpuAllocatorTest, RawMemoryFromBeforeItWasInstalledGoesBackWhereItCameFrom) {
  constexpr size_t kBytes = 1 << 20;
  c10::Allocator* before = c10::GetAllocator(c10::kCPU);
  std::vector<void*> raw;
  for (size_t bytes : {size_t{64}, size_t{5000}, kBytes}) {
    raw.push_back(before->raw_allocate(bytes));
    std::memset(raw.back(), 0x5a, bytes);
  }
  at::Tensor opaque;
  if (at::globalContext().hasMKLDNN()) opaque = at::ones({64, 64}).to_mkldnn();

  Ledger& ledger = CpuDevice::instance().ledger();
  c10::Allocator* after = c10::GetAllocator(c10::kCPU);
  ASSERT_NE(after, before);
  const int64_t used = ledger.used_bytes();
  for (void* data : raw) after->raw_deallocate(data);
  opaque.reset();
  EXPECT_EQ(ledger.used_bytes(), used);

  for (size_t bytes : {size_t{1}, kBytes}) {
    void* data = after->raw_allocate(bytes);
    EXPECT_GT(ledger.used_bytes(), used);
    after->raw_deallocate(data);
    EXPECT_EQ(ledger.used_bytes(), used);
  }
  after->raw_deallocate(nullptr);
}

}  // namespace
}  // namespace spillway
