// Tests that pages change their state only along the table of states, which keeps the totals.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.h"
#include "swap/pager/page_table.h"
#include "swap/pager/pager.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

using enum PageState;

constexpr PageState kStates[] = {resident_dirty, resident_clean, paging_out, absent,
                                 paging_in,      discarded,      replaying,  destroyed};

TEST(PageStateTest, NothingFollowsButWhatTheTableSays) {
  const std::set<std::pair<PageState, PageState>> table{
      {resident_dirty, paging_out}, {resident_dirty, discarded}, {resident_clean, resident_dirty},
      {resident_clean, absent},     {resident_clean, discarded}, {paging_out, resident_clean},
      {paging_out, resident_dirty}, {paging_out, absent},        {absent, paging_in},
      {paging_in, resident_clean},  {paging_in, resident_dirty}, {paging_in, absent},
      {discarded, replaying},       {replaying, resident_dirty}, {replaying, discarded}};
  for (PageState from : kStates)
    for (PageState to : kStates) {
      const bool ends = to == destroyed && from != destroyed;
      EXPECT_EQ(may_follow(from, to), ends || table.contains({from, to})) << name(from) << " to " << name(to);
    }
}

struct PageTableTest : ::testing::Test, PageKeeper {
  void on_block_released(Block*) noexcept override {}
  Page* add(int64_t bytes) {
    return table.add(table.make_page(bytes, Category::other, nullptr, kNobody), memory.allocate(bytes, Category::other),
                     *this);
  }
  Arena arena{1 << 20};
  Ledger ledger{"test"};
  DeviceMemory memory{arena, ledger};
  HostSlab slab{1 << 20};
  testing::SameThreadTimeline lane;
  HostTier host{slab, lane, lane, nullptr};
  PageTable table{memory, host};
};

TEST_F(PageTableTest, RefusesAStateThatMayNotFollowAndNamesBoth) {
  Page* page = add(1000);
  try {
    table.enter(*page, absent);
    FAIL() << "a dirty page's bytes would be nowhere";
  } catch (const std::logic_error& error) {
    EXPECT_EQ(std::string(error.what()), "[pager] page 1 is resident_dirty, which absent may not follow");
  }
  EXPECT_TRUE(page->is(resident_dirty));
  EXPECT_NE(page->block, nullptr);
  table.unregister(*page);
}

TEST_F(PageTableTest, CountsTheBytesOfPagesThatHoldABlockOfTheDevice) {
  Page* page = add(1000);
  Block* block = page->block;
  const int64_t charge = block->charged_bytes;
  for (PageState state : {paging_out, resident_clean, resident_dirty, paging_out, resident_clean}) {
    EXPECT_EQ(table.paged_bytes(), charge);
    table.enter(*page, state, block);
  }
  table.enter(*page, absent);
  EXPECT_EQ(table.paged_bytes(), 0);
  table.enter(*page, paging_in, block);
  EXPECT_EQ(table.paged_bytes(), charge);
  table.enter(*page, absent);
  memory.free(block);
  table.unregister(*page);
  EXPECT_EQ(table.paged_bytes(), 0);
  EXPECT_TRUE(table.pages().empty());
}

TEST_F(PageTableTest, ARecordIsHeldWhileTheLockIsGivenUp) {
  Page* page = add(1000);
  {
    const PageHold hold(table, *page), again(table, *page);
    table.destroy(*page);
    EXPECT_TRUE(page->is_destroyed());
    EXPECT_EQ(table.pages().size(), 1u);
  }
  EXPECT_TRUE(table.pages().empty());
  EXPECT_EQ(ledger.used_bytes(), 0);
}

struct EvictionOrderTest : ::testing::Test {
  /// Returns the number of the candidate that leaves first of two.
  int first(const EvictionCandidate& a, const EvictionCandidate& b, EvictionLimits limits = {}) const {
    return first_by(order, a, b, limits);
  }
  static int first_by(const EvictionOrder& order, const EvictionCandidate& a, const EvictionCandidate& b,
                      EvictionLimits limits = {}) {
    VictimSearch<int> search(order, limits, 0);
    search.consider(1, a);
    search.consider(2, b);
    return search.victim();
  }
  const EvictionOrder order{100};
  const EvictionCandidate large{.charged_bytes = 1000, .next_use = 5, .last_use = 3};
};

TEST_F(EvictionOrderTest, TheFurthestNextUseLeavesFirst) {
  EvictionCandidate later = large;
  later.next_use = 6;
  later.is_clean = false;
  EvictionCandidate clean = large;
  clean.is_clean = true;
  EXPECT_EQ(first(clean, later), 2);
  EXPECT_EQ(first(later, clean), 1);
}

TEST_F(EvictionOrderTest, OfEqualNextUsesCleanPagesLeaveFirstThenThoseOnTheirWayThenTheLeastRecentlyUsed) {
  EvictionCandidate clean = large, leaving = large, older = large;
  clean.is_clean = true;
  leaving.is_paging_out = true;
  older.last_use = 2;
  EXPECT_EQ(first(leaving, clean), 2);
  EXPECT_EQ(first(older, leaving), 2);
  EXPECT_EQ(first(large, older), 2);
}

TEST_F(EvictionOrderTest, ASmallPageOfUnknownNextUseLeavesAfterAllOthers) {
  EvictionCandidate small{.charged_bytes = 99, .is_clean = true};
  EXPECT_EQ(first(small, large), 2);
  small.charged_bytes = 100;
  EXPECT_EQ(first(small, large), 1);
  small = {.charged_bytes = 99, .next_use = 9};
  EXPECT_EQ(first(small, large), 1) << "its next use is known";
}

TEST_F(EvictionOrderTest, APageWhoseCopyCostsMoreThanItsBytesLeavesLastAlsoWhereItsNextUseIsKnown) {
  const EvictionOrder gpu(100, /*costly_bytes=*/100);
  EvictionCandidate small{.charged_bytes = 99, .next_use = 9}, later = small;
  later.next_use = 10;
  EXPECT_EQ(first_by(gpu, small, large), 2);
  EXPECT_EQ(first_by(gpu, small, later), 2) << "among such pages the furthest next use";
  small.priority = EvictionPriority::first;
  EXPECT_EQ(first_by(gpu, small, large), 1) << "the schedule lets it go";
}

TEST_F(EvictionOrderTest, PagesThatAreToLeaveFirstCountAsNeverUsedAgain) {
  EvictionCandidate small{.charged_bytes = 99, .next_use = 4, .priority = EvictionPriority::first};
  EXPECT_EQ(first(large, small), 2);
  EXPECT_EQ(first(small, large, {.used_after = 5}), 1);
  EXPECT_EQ(first(large, large, {.used_after = 5}), 0) << "both are used before";
  EXPECT_EQ(first(large, small, {.clean_only = true}), 0);
}

TEST_F(EvictionOrderTest, ASchedulesBiasOutranksNextUses) {
  EvictionCandidate kept = large, gone = large;
  kept.next_use = kNextUseUnknown;
  kept.bias = EvictionBias::keep;
  gone.next_use = 1;
  gone.bias = EvictionBias::first;
  EXPECT_EQ(first(kept, large), 2);
  EXPECT_EQ(first(large, gone), 2);
}

}  // namespace
}  // namespace spillway
