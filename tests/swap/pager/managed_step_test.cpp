// Tests of a schedule over managed memory, on a device whose operators and moves run asynchronously to the host.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "swap/conductor/conductor.h"
#include "tests/support/copies.h"
#include "tests/support/stream_buffer.h"
#include "tests/support/streams.h"

namespace spillway {
using namespace swap;
namespace {

using testing::ComputeQueue;
using testing::ManagedBlocks;
using testing::ManagedMemory;
using testing::StreamBuffer;
using testing::StreamTimeline;

constexpr int64_t kBytes = 64 << 10;
const int64_t kBudget = 3 * DeviceMemory::charge_of(kBytes) + 1000;

/// A lane that throws std::bad_alloc instead of taking its next moves, as often as it is told to.
class RefusingMoves final : public testing::RunwiseTimeline {
 public:
  explicit RefusingMoves(Timeline& real) : real_(real) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    return real_.copy(destination, source, bytes);
  }
  Ticket move(void* data, int64_t bytes, Side to) override {
    if (refusals_ > 0 && refusals_-- > 0) throw std::bad_alloc();
    return real_.move(data, bytes, to);
  }
  void refuse(int moves) { refusals_ = moves; }

 private:
  Timeline& real_;
  int refusals_ = 0;
};

/// A device that holds three pages, for steps that read eight. A step reads them one after another, each twice in a
/// row, forth and back.
struct ManagedStepTest : ::testing::Test {
  ManagedStepTest() {
    memory.set_reclaimer(&pager);
    for (int i = 0; i < 8; ++i) pages.push_back(std::make_unique<StreamBuffer>(memory, pager, kBytes));
  }
  ~ManagedStepTest() override {
    pages.clear();
    compute->position().wait();
    memory.set_reclaimer(nullptr);
  }
  void operate(StreamBuffer& buffer) {
    static const int identity = 0;
    PageUse use{buffer.page(), false, kNextUseKept};
    pager.lease({&use, 1}, user);
    conductor.begin_operator({&identity, "test::read", false}, {&use, 1}, {}, {});
    (void)compute->submit([this, data = buffer.data()] {
      faults += !managed->use(data, kBytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    compute->position().wait();
    conductor.end_operator(1e-3, 0, {});
    pager.unlease({&use, 1});
    conductor.issue_copies();
  }
  void step() {
    conductor.begin_step("step");
    for (size_t i = 0; i < 2 * pages.size(); ++i) operate(*pages[i / 2]);
    for (size_t i = 2 * pages.size(); i-- > 0;) operate(*pages[i / 2]);
    conductor.end_step();
  }

  Arena arena{int64_t{64} << 20};
  HostSlab host{1 << 20};
  const std::shared_ptr<ComputeQueue> compute = std::make_shared<ComputeQueue>(1);
  const std::shared_ptr<ManagedMemory> managed = std::make_shared<ManagedMemory>();
  ManagedBlocks blocks{arena, compute, managed};
  Ledger ledger{"managed", kBudget};
  DeviceMemory memory{blocks, ledger};
  StreamTimeline out{compute, 2, {}, managed}, taken{compute, 3, {}, managed};
  RefusingMoves in{taken};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
  const UserId user = pager.table().add_user();
  Conductor conductor{pager, {.budget_bytes = kBudget}, true, user};
  std::vector<std::unique_ptr<StreamBuffer>> pages;
  std::atomic<int64_t> faults = 0;
};

TEST_F(ManagedStepTest, TheScheduleMovesPagesAfterTheirLastUseAndBackAheadOfTheNext) {
  for (int i = 0; i < 3; ++i) step();
  const PagerStats before = pager.stats();
  faults = 0;
  for (int i = 0; i < 4; ++i) step();
  const PagerStats after = pager.stats();
  EXPECT_EQ(faults, 0);
  EXPECT_LE(managed->peak_bytes(), kBudget);
  EXPECT_EQ(conductor.deviations(), 0);
  // At most five pages are absent, once forth and once back, though they were only read. No page moves between its two
  // uses.
  const int64_t ins = after.page_ins - before.page_ins;
  EXPECT_LE(ins, 4 * 2 * 6);
  EXPECT_LE(after.page_outs - before.page_outs, ins + 8);
  EXPECT_LT(after.demand_page_ins - before.demand_page_ins, ins);
  for (const Slot& slot : conductor.trace("step")->slots) EXPECT_EQ(slot.writes, slot.uses);
}

TEST_F(ManagedStepTest, WhatLibrariesTakeLaterIsCountedInThePlansOfTheNextSteps) {
  for (int i = 0; i < 4; ++i) step();
  ASSERT_EQ(conductor.trace("step")->operators[0].unpaged_bytes, 0);
  const int64_t page = DeviceMemory::charge_of(kBytes);
  memory.charge_external(page);
  step();
  for (const OperatorRecord& op : conductor.trace("step")->operators) EXPECT_EQ(op.unpaged_bytes, page);
  EXPECT_EQ(conductor.trace("step")->floor_bytes(), 2 * page);
  const PagerStats before = pager.stats();
  for (int i = 0; i < 4; ++i) step();
  const PagerStats after = pager.stats();
  EXPECT_EQ(conductor.deviations(), 0);
  EXPECT_LT(after.demand_page_ins - before.demand_page_ins, (after.page_ins - before.page_ins) / 2);

  memory.refund_external(2 * page);  // more than was charged
  EXPECT_EQ(memory.external_bytes(), 0);
  step();
  for (const OperatorRecord& op : conductor.trace("step")->operators) EXPECT_EQ(op.unpaged_bytes, page);
  pager.evict_all();
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST_F(ManagedStepTest, WhatLibrariesTakeWhileAStepRunsIsCountedOnceInEveryOperator) {
  const int64_t page = DeviceMemory::charge_of(kBytes);
  conductor.begin_step("step");
  for (size_t i = 0; i < pages.size(); ++i) {
    if (i == pages.size() / 2) memory.charge_external(page);  // as another Session's step does at its end
    operate(*pages[i]);
  }
  conductor.end_step();
  for (const OperatorRecord& op : conductor.trace("step")->operators) EXPECT_EQ(op.unpaged_bytes, page);
  memory.refund_external(page);
}

TEST_F(ManagedStepTest, APageInThatCannotBeStartedLeavesThePageParkedUntilOneCan) {
  pager.evict_all();
  Page& page = *pages[0]->page();
  ASSERT_TRUE(page.is(PageState::absent) && page.is_managed());
  const int64_t used = ledger.used_bytes();
  in.refuse(1);
  EXPECT_FALSE(pager.prefetcher().try_page_in(page.id));
  EXPECT_TRUE(page.is(PageState::absent) && page.is_managed());
  EXPECT_EQ(ledger.used_bytes(), used);
  const PageUse use{&page, false, kNextUseKept};
  in.refuse(2);
  EXPECT_THROW(pager.lease({&use, 1}), std::bad_alloc);
  EXPECT_TRUE(page.is(PageState::absent) && page.is_managed());
  EXPECT_EQ(page.leases, 0);
  EXPECT_EQ(ledger.used_bytes(), used);
  for (const auto& buffer : pages) operate(*buffer);
  EXPECT_EQ(faults, 0);
}

}  // namespace
}  // namespace spillway
