// Tests of the pager's prefetches when no schedule tells the next use.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "swap/pager/pager.h"
#include "tests/support/buffers.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;

constexpr int64_t kBytes = 1 << 20;
const int64_t kCharge = DeviceMemory::charge_of(kBytes);

/// A device that holds eight pages.
struct PagerDemandTest : ::testing::Test {
  PagerDemandTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  std::vector<std::unique_ptr<Buffer>> buffers(int count) {
    std::vector<std::unique_ptr<Buffer>> all;
    for (int i = 0; i < count; ++i) all.push_back(buffer(1));
    return all;
  }
  void touch(Buffer& buffer, bool write = false) {
    PageUse use{buffer.page(), write, buffer.page()->use.next_use};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  }

  Arena arena{1 << 28};
  Ledger ledger{"test", 8 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 28};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
};

TEST_F(PagerDemandTest, CopiesTheOldestOutWhenLessThanAQuarterIsFree) {
  auto six = buffers(6);
  pager.prefetcher().work_without_schedule();
  EXPECT_EQ(pager.stats().bytes_out, 0);
  auto seventh = buffer(1);
  pager.prefetcher().work_without_schedule();
  EXPECT_EQ(pager.stats().bytes_out, 2 * kBytes);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(!six[static_cast<size_t>(i)]->page()->is(PageState::resident_dirty));
}

TEST_F(PagerDemandTest, FetchesWhatWasUsedLastOnceSomethingHadToBeAskedFor) {
  auto absent = buffers(6);
  { auto others = buffers(8); }
  for (auto& page : absent) EXPECT_FALSE(page->present());
  pager.prefetcher().work_without_schedule();
  EXPECT_EQ(pager.stats().page_ins, 0);
  touch(*absent[0]);
  pager.prefetcher().work_without_schedule();
  EXPECT_EQ(pager.stats().page_ins, 6);
}

TEST_F(PagerDemandTest, WhatIsWrittenAgainAndAgainIsNotCopiedWhileOthersAreComingBack) {
  auto absent = buffers(6);
  auto written = buffer(1);
  {
    auto others = buffers(7);
    touch(*written, /*write=*/true);
  }
  touch(*absent[0]);
  pager.prefetcher().work_without_schedule();  // the five others are coming, and an eighth of the budget stays free
  const int64_t copied = pager.stats().bytes_out;
  for (int i = 0; i < 20; ++i) {
    touch(*written, /*write=*/true);
    pager.prefetcher().work_without_schedule();
  }
  EXPECT_EQ(pager.stats().bytes_out, copied);
}

}  // namespace
}  // namespace spillway
