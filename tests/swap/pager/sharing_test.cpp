// Tests of the parts that several users share without LibTorch: turns, the pager's pages, and conductors' traces.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"
#include "swap/conductor/conductor.h"
#include "swap/gate/fair_mutex.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;
using testing::FailingTimeline;
using testing::ManualTimeline;

constexpr int64_t kBytes = 1 << 16;
const int64_t kCharge = DeviceMemory::charge_of(kBytes);

TEST(TurnsTest, AreTakenOneAtATimeInTheOrderOfAsking) {
  FairMutex turns;
  std::vector<int> order;
  std::vector<std::thread> threads;
  int inside = 0;
  bool crowded = false;
  std::unique_lock held(turns);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        std::lock_guard turn(turns);
        crowded |= ++inside > 1;
        order.push_back(t);
        --inside;
      }
    });
    while (turns.asked() < static_cast<uint64_t>(t) + 2) std::this_thread::yield();
  }
  held.unlock();
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(crowded);
  ASSERT_EQ(order.size(), 200u);
  order.resize(4);  // a thread that asks a second time is behind those that ask a first time
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

struct SharingTest : ::testing::Test {
  SharingTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  void touch(Buffer& buffer, UserId user) {
    PageUse use{buffer.page(), false, kNextUseKept};
    pager.lease({&use, 1}, user);
    pager.unlease({&use, 1});
  }

  Arena arena{1 << 24};
  Ledger ledger{"test", 8 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{3 * kBytes};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
  const UserId one = pager.table().add_user(), other = pager.table().add_user();
};

TEST_F(SharingTest, APageIsItsLastUsersAndLeavesWhenThatOneRetires) {
  auto a = buffer(1), b = buffer(2), both = buffer(3), nobodys = buffer(4);
  touch(*a, one);
  touch(*b, other);
  touch(*both, one);
  touch(*both, other);
  pager.remove_user(one);
  EXPECT_FALSE(a->present());
  EXPECT_TRUE(b->present());
  EXPECT_TRUE(both->present());
  EXPECT_TRUE(nobodys->present());
  touch(*a, other);
  EXPECT_TRUE(a->holds(1));
  EXPECT_EQ(pager.table().users(), 1);
}

TEST_F(SharingTest, WhatCannotLeaveWhenItsUserRetiresStaysAndIsNoPageAnyMore) {
  std::vector<std::unique_ptr<Buffer>> buffers;  // more than fit on the host
  for (int i = 0; i < 5; ++i) {
    buffers.push_back(buffer(static_cast<unsigned char>(i)));
    touch(*buffers.back(), one);
  }
  pager.remove_user(one);
  int stayed = 0;
  for (auto& b : buffers) stayed += b->present();
  EXPECT_EQ(stayed, 2);
  EXPECT_EQ(pager.paged_bytes(), 0);
  EXPECT_EQ(ledger.used_bytes(), 2 * kCharge);
  pager.evict_all();
  for (auto& b : buffers)
    if (b->present()) {
      EXPECT_TRUE(b->holds(static_cast<unsigned char>(&b - buffers.data())));
      --stayed;
    }
  EXPECT_EQ(stayed, 0);  // evict_all() moved none of them
}

TEST_F(SharingTest, ALeaseOutlivesItsUserAndEvenTheHomecoming) {
  auto lent = buffer(7);
  touch(*lent, one);
  PageUse use{lent->page(), true, kNextUseKept};
  pager.lease({&use, 1}, one);
  pager.remove_user(one);
  EXPECT_TRUE(lent->holds(7));
  pager.unregister_resident();
  EXPECT_TRUE(lent->holds(7));
  pager.unlease({&use, 1});
  lent.reset();
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST_F(SharingTest, APageThatIsOnItsWayInWhenItsUserRetiresLeavesAgain) {
  ManualTimeline late;
  Pager slow(memory, host, out, late, 0);
  memory.set_reclaimer(&slow);
  const UserId user = slow.table().add_user();
  {
    Buffer b(memory, slow, kBytes, 9);
    PageUse use{b.page(), false, kNextUseKept};
    slow.lease({&use, 1}, user);
    slow.unlease({&use, 1});
    slow.evict_all();
    EXPECT_TRUE(slow.prefetcher().try_page_in(b.page()->id));
    std::thread copying([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      late.finish_one();
    });
    slow.remove_user(user);
    copying.join();
    EXPECT_FALSE(b.present());
    EXPECT_EQ(slow.paged_bytes(), 0);
    EXPECT_EQ(ledger.used_bytes(), 0);
  }
  memory.set_reclaimer(&pager);
}

TEST_F(SharingTest, OneThatCannotComeHomeDoesNotKeepTheOthersAway) {
  auto bad_lane = std::make_unique<FailingTimeline>(std::make_unique<WorkerTimeline>("in"), 1);
  Pager wreck(memory, host, out, *bad_lane, 0);
  memory.set_reclaimer(&wreck);
  {
    Buffer a(memory, wreck, kBytes, 1), b(memory, wreck, kBytes, 2), c(memory, wreck, kBytes, 3);
    wreck.evict_all();
    EXPECT_THROW(wreck.unregister_resident(), std::runtime_error);
    EXPECT_EQ(a.present() + b.present() + c.present(), 1);  // the lane's one good copy
    EXPECT_EQ(wreck.paged_bytes(), 0);
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
  EXPECT_EQ(host.used_bytes(), 0);
  memory.set_reclaimer(&pager);
}

TEST_F(SharingTest, APageThatDiesWhileItsUserRetiresIsLetGoOfWhenItsCopyFailed) {
  ManualTimeline late;
  Pager slow(memory, host, late, in, 0);
  memory.set_reclaimer(&slow);
  const UserId user = slow.table().add_user();
  auto dying = std::make_unique<Buffer>(memory, slow, kBytes, 9);
  PageUse use{dying->page(), false, kNextUseKept};
  slow.lease({&use, 1}, user);
  slow.unlease({&use, 1});
  std::thread other_thread([&] {
    while (slow.stats().page_outs == 0) std::this_thread::yield();
    dying.reset();
    late.fail_one();
  });
  slow.remove_user(user);
  other_thread.join();
  slow.evict_all();  // the block is freed now, because no copy uses it
  EXPECT_EQ(slow.paged_bytes(), 0);
  EXPECT_EQ(ledger.used_bytes(), 0);
  memory.set_reclaimer(&pager);
}

TEST_F(SharingTest, ABlockIsReleasedToThePagerOfItsPageWhoeverReclaims) {
  Pager old(memory, host, out, in, 0);
  for (Reclaimer* now : {static_cast<Reclaimer*>(&pager), static_cast<Reclaimer*>(nullptr)}) {
    memory.set_reclaimer(&old);
    auto olds = std::make_unique<Buffer>(memory, old, kBytes, 1);
    memory.set_reclaimer(now);
    auto ours = buffer(2);
    olds.reset();
    EXPECT_EQ(old.paged_bytes(), 0);
    EXPECT_EQ(pager.paged_bytes(), kCharge);
    EXPECT_EQ(ledger.used_bytes(), kCharge);
    old.evict_all();  // does not know the page any more
    pager.evict_all();
    touch(*ours, one);
    EXPECT_TRUE(ours->holds(2));
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
  memory.set_reclaimer(&pager);
}

TEST_F(SharingTest, EndsAreNotedForEveryUserThatAskedFromThenOn) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  const PageId second = b->page()->id;
  const PageId third = c->page()->id;
  a.reset();
  pager.table().watch_destroyed(one);
  b.reset();
  pager.table().watch_destroyed(other);
  c.reset();
  std::vector<PageId> ones, others;
  pager.table().take_destroyed(one, ones);
  pager.table().take_destroyed(other, others);
  EXPECT_EQ(ones, (std::vector<PageId>{second, third}));
  EXPECT_EQ(others, std::vector<PageId>{third});
  pager.table().stop_watching(one);
  buffer(4).reset();
  ones.clear();
  pager.table().take_destroyed(one, ones);
  EXPECT_TRUE(ones.empty());
}

/// Runs one operator of `conductor` on these buffers.
void operate(Conductor& conductor, Pager& pager, const std::vector<Buffer*>& buffers, int64_t own_bytes = 0) {
  static const int identity = 0;
  std::vector<PageUse> uses;
  for (Buffer* b : buffers) uses.push_back({b->page(), true, kNextUseKept});
  pager.lease(uses, conductor.user());
  conductor.begin_operator({&identity, "test::operator", false}, uses, {}, {});
  conductor.end_operator(1e-3, own_bytes, {});
  pager.unlease(uses);
  conductor.issue_copies();
}

TEST_F(SharingTest, TwoConductorsTraceOnePageEachInASlotOfItsOwn) {
  Conductor a(pager, {}, true, one), b(pager, {}, true, other);
  auto of_a = buffer(1), of_b = buffer(2), of_both = buffer(3);
  auto dying = buffer(4);
  a.begin_step("a");
  b.begin_step("b");
  operate(b, pager, {of_b.get(), dying.get()});
  operate(a, pager, {of_both.get(), of_a.get()});
  operate(b, pager, {of_both.get()});
  operate(a, pager, {of_both.get(), dying.get()});
  dying.reset();
  operate(b, pager, {of_both.get()});
  operate(a, pager, {of_a.get()});
  a.end_step();
  b.end_step();

  auto uses_of = [](const StepTrace& trace, PageId page) {
    std::vector<int32_t> uses;
    int slots = 0;
    for (const Slot& slot : trace.slots)
      if (slot.page == page) {
        uses = slot.uses;
        ++slots;
      }
    EXPECT_LE(slots, 1);
    return uses;
  };
  const StepTrace &in_a = *a.trace("a"), &in_b = *b.trace("b");
  EXPECT_EQ(in_a.slots.size(), 3u);  // of_a, of_both and the dying one, none of the other user's
  EXPECT_EQ(in_b.slots.size(), 3u);
  EXPECT_EQ(uses_of(in_a, of_both->page()->id), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(uses_of(in_b, of_both->page()->id), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(uses_of(in_a, of_a->page()->id), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(uses_of(in_b, of_b->page()->id), std::vector<int32_t>{0});
  auto deaths = [](const StepTrace& trace) {
    std::vector<int32_t> died;
    for (const Slot& slot : trace.slots)
      if (slot.death != kOutlivesStep) died.push_back(slot.death);
    return died;
  };
  EXPECT_EQ(deaths(in_a), std::vector<int32_t>{1});  // each trace counts its own operators
  EXPECT_EQ(deaths(in_b), std::vector<int32_t>{1});
}

TEST_F(SharingTest, AStepThatDeviatesOrIsAbandonedForgetsOnlyItsOwnNextUses) {
  Conductor a(pager, {}, true, one);
  auto of_a = buffer(1), of_b = buffer(2);
  touch(*of_a, one);
  touch(*of_b, other);
  pager.table().set_next_use(*of_a->page(), 5);
  pager.table().set_next_use(*of_b->page(), 6);
  a.begin_step("a");
  a.abandon_step();
  EXPECT_EQ(of_a->page()->use.next_use, kNextUseUnknown);
  EXPECT_EQ(of_b->page()->use.next_use, 6);
}

TEST_F(SharingTest, NextUsesOfAllConductorsCountOnOneClock) {
  Conductor a(pager, {.budget_bytes = 100 * kCharge}, true, one), b(pager, {}, true, other);
  auto of_a = buffer(1), of_b = buffer(2);
  for (int step = 0; step < 2; ++step) {
    a.begin_step("a");
    operate(a, pager, {of_a.get()});
    a.end_step();
    b.begin_step("b");
    for (int i = 0; i < 10; ++i) operate(b, pager, {of_b.get()});
    b.end_step();
  }
  // The second step of `a` began after 11 operators. The first operator of the next such step uses its page again.
  EXPECT_EQ(of_a->page()->use.next_use, 11 + 1);
}

TEST_F(SharingTest, AStepIsPlannedForAnEqualShareAndAnewWhenTheSharesChange) {
  const UserId third = pager.table().add_user();
  pager.remove_user(other);
  pager.remove_user(third);
  ASSERT_EQ(pager.table().users(), 1);
  Conductor a(pager, {.budget_bytes = 4 * kCharge}, true, one);
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(buffer(static_cast<unsigned char>(i)));
  auto step = [&] {
    a.begin_step("a");
    for (auto& b : buffers) operate(a, pager, {b.get()});
    a.end_step();
    return a.schedule("a")->bytes_out;
  };
  EXPECT_EQ(step(), 0);  // three pages fit into four
  EXPECT_EQ(step(), 0);
  const UserId joined = pager.table().add_user();
  EXPECT_GT(step(), 0);  // and not into two
  pager.remove_user(joined);
  EXPECT_EQ(step(), 0);
  EXPECT_EQ(a.deviations(), 0);
}

TEST(DeviceMemoryTest, AReclaimerMayEndOnceItIsReplaced) {
  Arena arena(1 << 20);
  Ledger ledger("test", 4096);
  DeviceMemory memory(arena, ledger);
  struct Slow : Reclaimer {
    Ledger& ledger;
    std::atomic<bool> inside = false;
    explicit Slow(Ledger& ledger) : ledger(ledger) {}
    void reclaim(int64_t) override {
      inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ledger.set_budget(kUnlimitedBytes);
      inside = false;
    }
  } slow(ledger);
  memory.set_reclaimer(&slow);
  std::thread allocating([&] { memory.release(memory.allocate(8192, Category::other)); });
  while (!slow.inside) std::this_thread::yield();
  memory.set_reclaimer(nullptr);
  EXPECT_FALSE(slow.inside);
  allocating.join();
}

}  // namespace
}  // namespace spillway
