// Copies of pages that are late, fail or cannot be started.
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <thread>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"
#include "tests/swap/pager/pages.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;
using testing::FailingTimeline;
using testing::kBytes;
using testing::kCharge;
using testing::ManualTimeline;

/// A device that holds two pages, and a host with room for any number.
struct PagerCopiesTest : ::testing::Test {
  Arena arena{1 << 26};
  Ledger ledger{"test", 2 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 26};
};

TEST_F(PagerCopiesTest, AWriteWaitsForTheCopyThatReadsThePage) {
  ManualTimeline out, in;
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1);
  pager.prefetcher().start_page_out(a.page()->id);
  ASSERT_EQ(out.pending(), 1u);
  std::thread writer([&] {
    PageUse use{a.page(), true};
    pager.lease({&use, 1});
    a.fill(2);
    pager.unlease({&use, 1});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(a.holds(1));  // the writer still waits
  out.finish_one();
  writer.join();
  EXPECT_TRUE(a.holds(2));
  EXPECT_FALSE(a.page()->is(PageState::resident_clean));
}

TEST_F(PagerCopiesTest, ABlockOutlivesItsStorageWhileACopyReadsIt) {
  ManualTimeline out, in;
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  auto a = std::make_unique<Buffer>(memory, pager, kBytes, 1);
  pager.prefetcher().start_page_out(a->page()->id);
  a.reset();
  EXPECT_EQ(ledger.used_bytes(), kCharge);  // still charged: the copy reads it
  out.finish_one();
  Buffer b(memory, pager, kBytes, 2), c(memory, pager, kBytes, 3);
  EXPECT_LE(ledger.peak_bytes(), 2 * kCharge);
  EXPECT_EQ(host.used_bytes(), 0);
}

TEST_F(PagerCopiesTest, AFailedPageOutLeavesThePageResidentAndDirty) {
  WorkerTimeline in("in");
  FailingTimeline out(std::make_unique<WorkerTimeline>("out"), 0);
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2);
  EXPECT_THROW((void)memory.allocate(kBytes, Category::other), std::runtime_error);
  EXPECT_TRUE(a.holds(1));
  EXPECT_TRUE(b.holds(2));
}

TEST_F(PagerCopiesTest, APageInThatCannotBeStartedLeavesThePageAbsentUntilOneCan) {
  WorkerTimeline out("out");
  testing::RefusingTimeline in;
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2), c(memory, pager, kBytes, 3);
  ASSERT_FALSE(a.present());
  ledger.set_budget(5 * kCharge);
  const int64_t used = ledger.used_bytes();
  in.refuse(1);
  EXPECT_FALSE(pager.prefetcher().try_page_in(a.page()->id));
  EXPECT_EQ(ledger.used_bytes(), used);
  EXPECT_EQ(pager.paged_bytes(), used);
  PageUse use{a.page(), false};
  pager.lease({&use, 1});
  EXPECT_TRUE(a.holds(1));
  pager.unlease({&use, 1});
  pager.evict_all();
  in.refuse(2);
  EXPECT_THROW(pager.lease({&use, 1}), std::bad_alloc);
  EXPECT_EQ(a.page()->leases, 0);
  EXPECT_EQ(ledger.used_bytes(), 0);
  pager.lease({&use, 1});
  EXPECT_TRUE(a.holds(1));
  pager.unlease({&use, 1});
}

TEST_F(PagerCopiesTest, WhereAPageCannotBeCopiedOutACleanOneLeavesInstead) {
  WorkerTimeline in("in");
  FailingTimeline out(std::make_unique<WorkerTimeline>("out"), 1);
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2);
  pager.prefetcher().start_page_out(a.page()->id);
  while (!a.page()->copy.done()) std::this_thread::yield();
  pager.table().set_next_use(*a.page(), 5);
  pager.table().set_next_use(*b.page(), 50);
  Buffer c(memory, pager, kBytes, 3);
  EXPECT_FALSE(a.present());
  EXPECT_TRUE(b.holds(2) && c.holds(3));
}

TEST_F(PagerCopiesTest, APrefetchThatFailsIsNoErrorOfAnAllocationThatNeedsItsRoom) {
  ledger.set_budget(3 * kCharge);
  WorkerTimeline out("out");
  ManualTimeline in;
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1);
  pager.evict_all();
  Buffer b(memory, pager, kBytes, 2);
  PageUse held{b.page(), false};
  pager.lease({&held, 1});
  ASSERT_TRUE(pager.prefetcher().try_page_in(a.page()->id));
  in.fail_one();
  Block* block = nullptr;
  EXPECT_NO_THROW(block = memory.allocate(2 * kBytes, Category::other));
  EXPECT_FALSE(a.present());
  if (block) memory.release(block);
  pager.unlease({&held, 1});
  ASSERT_TRUE(pager.prefetcher().try_page_in(a.page()->id));
  in.finish_one();
  pager.lease({&held, 1});
  PageUse use{a.page(), false};
  pager.lease({&use, 1});
  EXPECT_TRUE(a.holds(1));
}

TEST_F(PagerCopiesTest, AFullHostIsAClearErrorAndKeepsThePage) {
  HostSlab small_host(kBytes / 2);
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, small_host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2);
  EXPECT_NO_THROW(pager.prefetcher().start_page_out(a.page()->id));
  try {
    (void)memory.allocate(kBytes, Category::other);
    FAIL() << "found room that is not there";
  } catch (const OutOfBudget& error) {
    EXPECT_NE(std::string(error.what()).find("host budget"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(kBytes / 2) + " more bytes"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(a.holds(1));
}

TEST_F(PagerCopiesTest, APageOutThatFailedAheadOfNeedIsTriedAgainWhenItsRoomIsNeeded) {
  testing::TemporaryFolder folder;
  HostSlab small_host(1 << 20);  // less than the disk's buffers and a page need
  auto control = std::make_shared<testing::DiskSwitch>();
  DiskTier disk(folder.path(), small_host, {.decorate_io = testing::switched(control)});
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, small_host, out, in, 0, &disk);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2);
  control->fail(ENOSPC);
  pager.prefetcher().start_page_out(a.page()->id);
  pager.prefetcher().start_page_out(b.page()->id);
  while (!a.page()->copy.done() || !b.page()->copy.done()) std::this_thread::yield();
  PageUse write{b.page(), true};
  EXPECT_NO_THROW(pager.lease({&write, 1}));
  pager.unlease({&write, 1});
  control->fail(0);
  Buffer c(memory, pager, kBytes, 3);
  EXPECT_FALSE(a.present() && b.present());
  ledger.set_budget(kUnlimitedBytes);
  pager.unregister_resident();
  EXPECT_TRUE(a.holds(1) && b.holds(2) && c.holds(3));
}

}  // namespace
}  // namespace spillway
