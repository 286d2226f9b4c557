#include "swap/pager/pager.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "core/error.h"
#include "tests/support/buffers.h"
#include "tests/swap/pager/pages.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;
using testing::kBytes;
using testing::kCharge;

/// A device that holds three pages, and a host with room for any number.
struct PagerTest : ::testing::Test {
  PagerTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  void touch(Buffer& buffer, bool write = false) { testing::touch(pager, buffer, write); }

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

}  // namespace
}  // namespace spillway
