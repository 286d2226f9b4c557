#include "swap/pager/pager.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/error.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;
using testing::FailingTimeline;
using testing::ManualTimeline;

constexpr int64_t kBytes = 1 << 20;
const int64_t kCharge = DeviceMemory::charge_of(kBytes);

/// A device that holds three pages, and a host with room for any number.
struct PagerTest : ::testing::Test {
  PagerTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  void touch(Buffer& buffer, bool write = false) {
    PageUse use{buffer.page(), write, buffer.page()->use.next_use};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  }

  Arena arena{1 << 28};
  Ledger ledger{"test", 3 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 28};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
};

TEST_F(PagerTest, EvictsTheLeastRecentlyUsedWhenNothingIsKnown) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  touch(*b);
  touch(*c);
  touch(*a);
  auto d = buffer(4);
  EXPECT_TRUE(a->present());
  EXPECT_FALSE(b->present());
  EXPECT_TRUE(d->holds(4));
  EXPECT_LE(ledger.peak_bytes(), 3 * kCharge);
}

TEST_F(PagerTest, EvictsTheFurthestNextUseFirst) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  pager.table().set_next_use(*a->page(), 30);
  pager.table().set_next_use(*b->page(), 10);
  pager.table().set_next_use(*c->page(), 20);
  auto d = buffer(4);
  EXPECT_FALSE(a->present());
  EXPECT_TRUE(b->present());
  EXPECT_TRUE(c->present());
}

TEST_F(PagerTest, DropsCleanPagesBeforeDirtyOnesWithoutASecondCopy) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  auto d = buffer(4);  // a leaves, with a copy, and b's copy starts, too
  EXPECT_FALSE(a->present());
  touch(*a);  // b leaves, and a is resident and clean
  ASSERT_TRUE(a->holds(1));
  const int64_t copied = pager.stats().bytes_out;
  touch(*c, /*write=*/true);
  touch(*d, /*write=*/true);
  auto e = buffer(5);
  EXPECT_FALSE(a->present());  // the most recent except c and d, and the only clean one
  EXPECT_EQ(pager.stats().bytes_out, copied);
  touch(*a);
  EXPECT_TRUE(a->holds(1));
}

TEST_F(PagerTest, AWrittenPageIsCopiedAgain) {
  auto a = buffer(1), b = buffer(2), c = buffer(3), d = buffer(4);
  touch(*a, /*write=*/true);
  a->fill(9);
  auto e = buffer(5), f = buffer(6), g = buffer(7);
  EXPECT_FALSE(a->present());
  touch(*a);
  EXPECT_TRUE(a->holds(9));
}

TEST_F(PagerTest, LeasedPagesStayAndLeasesAreAllOrNothing) {
  auto a = buffer(1), b = buffer(2), c = buffer(3), d = buffer(4);
  PageUse three[] = {{b->page(), false}, {c->page(), false}, {d->page(), false}};
  pager.lease(three);
  PageUse one{a->page(), false};
  EXPECT_THROW(pager.lease({&one, 1}), OutOfBudget);
  EXPECT_EQ(a->page()->leases, 0);
  pager.unlease(three);
  touch(*a);
  EXPECT_TRUE(a->holds(1));
}

TEST_F(PagerTest, AnEarlyPageOutMakesTheLaterDropFree) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  pager.prefetcher().start_page_out(a->page()->id);
  while (host.used_bytes() == 0 || !a->page()->copy.done()) std::this_thread::yield();
  EXPECT_TRUE(a->present());
  const double waited = pager.stats().exposed_seconds;
  auto d = buffer(4);
  EXPECT_FALSE(a->present());
  EXPECT_EQ(pager.stats().exposed_seconds, waited);
  touch(*a);
  EXPECT_TRUE(a->holds(1));
}

TEST_F(PagerTest, APageThatIsLentForWritingIsNotCopiedBeforeItIsGivenBack) {
  auto a = buffer(1);
  PageUse use{a->page(), true};
  pager.lease({&use, 1});
  pager.prefetcher().start_page_out(a->page()->id);
  while (!a->page()->copy.done()) std::this_thread::yield();
  a->fill(9);  // an earlier copy would lack these bytes
  pager.unlease({&use, 1});
  auto b = buffer(2), c = buffer(3), d = buffer(4);
  ASSERT_FALSE(a->present());
  touch(*a);
  EXPECT_TRUE(a->holds(9));
}

TEST_F(PagerTest, PrefetchesOnlyIntoRoomThatIsFreeOrHeldByCleanPagesUsedLater) {
  auto a = buffer(1);
  pager.table().set_next_use(*a->page(), 40);
  auto b = buffer(2), c = buffer(3);
  pager.table().set_next_use(*b->page(), 5);
  pager.table().set_next_use(*c->page(), 50);
  PageUse both[] = {{b->page(), false, 5}, {c->page(), false, 50}};
  pager.lease(both);
  auto d = buffer(4);  // a leaves
  ASSERT_FALSE(a->present());
  pager.unlease(both);
  pager.table().set_next_use(*d->page(), 6);
  pager.table().set_next_use(*a->page(), 10);
  EXPECT_FALSE(pager.prefetcher().try_page_in(a->page()->id));  // c is used later, but dirty
  pager.prefetcher().start_page_out(c->page()->id);
  while (!c->page()->copy.done()) std::this_thread::yield();
  EXPECT_TRUE(pager.prefetcher().try_page_in(a->page()->id));
  EXPECT_FALSE(c->present());
  touch(*a);
  EXPECT_TRUE(a->holds(1));
  EXPECT_EQ(pager.stats().demand_page_ins, 0);
  pager.table().set_next_use(*a->page(), 7);
  pager.table().set_next_use(*c->page(), 8);
  EXPECT_FALSE(pager.prefetcher().try_page_in(c->page()->id));  // everything resident is used before
}

TEST_F(PagerTest, FreesHostAndDeviceBytesOfPagesThatEnd) {
  auto a = buffer(1), b = buffer(2), c = buffer(3), d = buffer(4), e = buffer(5);
  EXPECT_GT(host.used_bytes(), 0);
  a.reset();  // a is absent
  b.reset();
  c.reset();
  d.reset();
  e.reset();                    // e is resident
  pager.unregister_resident();  // only copies under way are left
  EXPECT_EQ(host.used_bytes(), 0);
  EXPECT_EQ(ledger.used_bytes(), 0);
  EXPECT_EQ(pager.paged_bytes(), 0);
}

TEST_F(PagerTest, NamesWhoAskedAndHowManyBytesWhenNothingCanLeave) {
  auto a = buffer(1);
  PageUse use{a->page(), false};
  pager.lease({&use, 1});
  OperatorScope scope("aten::big");
  try {
    (void)memory.allocate(3 * kBytes, Category::other);
    FAIL() << "exceeded the budget";
  } catch (const OutOfBudget& error) {
    EXPECT_NE(std::string(error.what()).find("aten::big"), std::string::npos) << error.what();
    EXPECT_EQ(error.requested_bytes(), DeviceMemory::charge_of(3 * kBytes));
  }
  pager.unlease({&use, 1});
}

TEST_F(PagerTest, UnderASoftBudgetWhatCannotFitGoesInAfterAllElseHasLeft) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  ledger.set_budget(3 * kCharge, /*soft=*/true);
  PageUse use{a->page(), false};
  pager.lease({&use, 1});
  Block* big = memory.allocate(4 * kBytes, Category::other);
  EXPECT_FALSE(b->present() || c->present());
  EXPECT_EQ(ledger.peak_bytes(), kCharge + DeviceMemory::charge_of(4 * kBytes));
  PageUse more{b->page(), false};
  pager.lease({&more, 1});
  EXPECT_TRUE(a->holds(1) && b->holds(2));
  memory.free(big);
  pager.unlease({&use, 1});
  pager.unlease({&more, 1});
  touch(*c);
  auto d = buffer(4);
  EXPECT_LE(ledger.used_bytes(), 3 * kCharge) << "within the budget again";
}

TEST_F(PagerTest, BringsEverythingHome) {
  auto a = buffer(1), b = buffer(2), c = buffer(3), d = buffer(4), e = buffer(5);
  ledger.set_budget(kUnlimitedBytes);
  pager.unregister_resident();
  unsigned char fill = 1;
  for (Buffer* b : {a.get(), b.get(), c.get(), d.get(), e.get()}) EXPECT_TRUE(b->holds(fill++));
  EXPECT_EQ(host.used_bytes(), 0);
  EXPECT_EQ(pager.paged_bytes(), 0);
}

TEST(PagerCopiesTest, AWriteWaitsForTheCopyThatReadsThePage) {
  Arena arena(1 << 26);
  Ledger ledger("test");
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
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

TEST(PagerCopiesTest, ABlockOutlivesItsStorageWhileACopyReadsIt) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
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

TEST(PagerCopiesTest, AFailedPageOutLeavesThePageResidentAndDirty) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
  WorkerTimeline in("in");
  FailingTimeline out(std::make_unique<WorkerTimeline>("out"), 0);
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2);
  EXPECT_THROW((void)memory.allocate(kBytes, Category::other), std::runtime_error);
  EXPECT_TRUE(a.holds(1));
  EXPECT_TRUE(b.holds(2));
}

TEST(PagerCopiesTest, APageInThatCannotBeStartedLeavesThePageAbsentUntilOneCan) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
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

TEST(PagerCopiesTest, WhereAPageCannotBeCopiedOutACleanOneLeavesInstead) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
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

TEST(PagerCopiesTest, APrefetchThatFailsIsNoErrorOfAnAllocationThatNeedsItsRoom) {
  Arena arena(1 << 26);
  Ledger ledger("test", 3 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(1 << 26);
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

TEST(PagerCopiesTest, AFullHostIsAClearErrorAndKeepsThePage) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(kBytes / 2);
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, host, out, in, 0);
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

TEST(PagerCopiesTest, APageOutThatFailedAheadOfNeedIsTriedAgainWhenItsRoomIsNeeded) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  testing::TemporaryFolder folder;
  HostSlab host(1 << 20);  // less than the disk's buffers and a page need
  auto control = std::make_shared<testing::DiskSwitch>();
  DiskTier disk(folder.path(), host, {.decorate_io = testing::switched(control)});
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, host, out, in, 0, &disk);
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

TEST(PagerHostTest, CopiesOfPagesThatCameBackMakeWayWhenTheHostIsFull) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(2 * kBytes);
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2), c(memory, pager, kBytes, 3);
  auto touch = [&](Buffer& buffer) {
    PageUse use{buffer.page(), false};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  };
  ASSERT_FALSE(a.present());
  touch(a);
  ASSERT_FALSE(b.present());  // the host is full of b's only copy and one of a's two
  pager.table().set_next_use(*a.page(), 5);
  pager.table().set_next_use(*c.page(), 50);
  touch(b);
  EXPECT_TRUE(a.present());
  EXPECT_FALSE(a.page()->is(PageState::resident_clean));
  EXPECT_FALSE(c.present());
  EXPECT_LE(host.peak_bytes(), 2 * kBytes);
  ledger.set_budget(kUnlimitedBytes);
  pager.unregister_resident();
  EXPECT_TRUE(a.holds(1) && b.holds(2) && c.holds(3));
}

TEST(PagerHostTest, ACleanPageLeavesWhereTheHostHasNoRoomForAnother) {
  Arena arena(1 << 26);
  Ledger ledger("test", kCharge + DeviceMemory::charge_of(2 * kBytes));
  DeviceMemory memory(arena, ledger);
  HostSlab host(2 * kBytes);
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer absent(memory, pager, kBytes, 1), clean(memory, pager, kBytes, 2);
  pager.evict_all();
  PageUse use{clean.page(), false};
  pager.lease({&use, 1});
  pager.unlease({&use, 1});
  Buffer large(memory, pager, 2 * kBytes, 3);
  pager.table().set_next_use(*clean.page(), 5);
  pager.table().set_next_use(*large.page(), 50);
  const int64_t copied = pager.stats().bytes_out;
  Buffer next(memory, pager, kBytes, 4);
  EXPECT_FALSE(clean.present());
  EXPECT_EQ(pager.stats().bytes_out, copied);  // its host copy was not dropped in vain
  ledger.set_budget(kUnlimitedBytes);
  pager.unregister_resident();
  EXPECT_TRUE(absent.holds(1) && clean.holds(2) && large.holds(3) && next.holds(4));
}

/// A device of two pages, a host of three beside the disk's buffers, and a disk that tests can stop.
struct PagerDiskTest : ::testing::Test {
  PagerDiskTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  void touch(Buffer& buffer) {
    PageUse use{buffer.page(), false};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  }
  Arena arena{1 << 28};
  Ledger ledger{"test", 2 * kCharge};
  DeviceMemory memory{arena, ledger};
  testing::TemporaryFolder folder;
  HostSlab host{4 * kBytes};
  std::shared_ptr<testing::DiskSwitch> control = std::make_shared<testing::DiskSwitch>();
  DiskTier disk{folder.path(), host, {.decorate_io = testing::switched(control)}};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0, &disk};
};

TEST_F(PagerDiskTest, PagesThatFitNeitherDeviceNorHostComeBackFromDisk) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (unsigned char i = 0; i < 12; ++i) buffers.push_back(buffer(i));
  EXPECT_GE(disk.stats().used_bytes, 6 * kBytes);
  for (unsigned char i = 0; i < 12; ++i) {
    touch(*buffers[i]);
    EXPECT_TRUE(buffers[i]->holds(i)) << int{i};
  }
  EXPECT_LE(ledger.peak_bytes(), 2 * kCharge);
  EXPECT_LE(host.peak_bytes(), host.capacity_bytes());
  ledger.set_budget(kUnlimitedBytes);
  pager.unregister_resident();
  for (unsigned char i = 0; i < 12; ++i) EXPECT_TRUE(buffers[i]->holds(i)) << int{i};
  EXPECT_EQ(disk.stats().used_bytes, 0);
}

TEST_F(PagerDiskTest, PrefetchesFromDiskWithoutBlocking) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (unsigned char i = 0; i < 8; ++i) buffers.push_back(buffer(i));
  buffers.erase(buffers.end() - 2, buffers.end());  // removes the resident ones, so that there is room
  ASSERT_FALSE(buffers[0]->present());
  control->pause(true);
  EXPECT_TRUE(pager.prefetcher().try_page_in(buffers[0]->page()->id));
  EXPECT_FALSE(buffers[0]->page()->copy.done());
  control->pause(false);
  touch(*buffers[0]);
  EXPECT_TRUE(buffers[0]->holds(0));
  EXPECT_EQ(pager.stats().demand_page_ins, 0);
}

TEST_F(PagerDiskTest, AFullDiskIsThrownToWhoNeededRoomAndNoPageIsLost) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (unsigned char i = 0; i < 7; ++i) buffers.push_back(buffer(i));
  control->fail(ENOSPC);
  try {
    for (unsigned char i = 7; i < 20; ++i) buffers.push_back(buffer(i));
    FAIL() << "found room that is not there";
  } catch (const DiskError& error) {
    EXPECT_NE(std::string(error.what()).find(disk.path().string()), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
  }
  ledger.set_budget(kUnlimitedBytes);
  EXPECT_NO_THROW(pager.unregister_resident());
  for (size_t i = 0; i < buffers.size(); ++i) EXPECT_TRUE(buffers[i]->holds(static_cast<unsigned char>(i))) << i;
}

TEST_F(PagerDiskTest, ADamagedPageIsNamedAndAllOthersComeHome) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (unsigned char i = 0; i < 8; ++i) buffers.push_back(buffer(i));
  ASSERT_FALSE(buffers[0]->present());
  std::filesystem::resize_file(disk.path(), kBytes);  // the first page in the file stays whole
  int lost = 0;
  for (auto& b : buffers) {
    OperatorScope scope("aten::sum");
    try {
      touch(*b);
    } catch (const DiskError& error) {
      ++lost;
      for (const auto& part : {std::string("a page of 1.00 MiB (other, page "), std::to_string(b->page()->id),
                               std::string("for aten::sum"), disk.path().string()})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  ASSERT_GT(lost, 0);
  ASSERT_LT(lost, 4);
  ledger.set_budget(kUnlimitedBytes);
  EXPECT_THROW(pager.unregister_resident(), DiskError);
  int home = 0;
  for (unsigned char i = 0; i < 8; ++i) home += buffers[i]->holds(i);
  EXPECT_EQ(home, 8 - lost);
  buffers.clear();
  EXPECT_EQ(ledger.used_bytes(), 0);
}

}  // namespace
}  // namespace spillway
