#include "core/ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/error.h"
#include "core/memory/device_memory.h"

namespace spillway {

TEST(LedgerTest, RefusesTheByteThatWouldExceedTheBudget) {
  Ledger ledger("test", 100);
  EXPECT_TRUE(ledger.try_charge(100, Category::weights));
  EXPECT_FALSE(ledger.try_charge(1, Category::other));
  EXPECT_EQ(ledger.used_bytes(), 100);
  ledger.refund(1, Category::weights);
  EXPECT_TRUE(ledger.try_charge(1, Category::other));
}

TEST(LedgerTest, ASoftBudgetIsExceededByWhatIsAskedForAndNoLongerThanThat) {
  Ledger ledger("test");
  EXPECT_FALSE(ledger.raise_limit(1)) << "a hard one is not";
  ledger.set_budget(100, /*soft=*/true);
  ASSERT_TRUE(ledger.try_charge(90, Category::weights));
  EXPECT_FALSE(ledger.try_charge(30, Category::other));
  EXPECT_TRUE(ledger.raise_limit(30));
  EXPECT_EQ(ledger.available_bytes(), 30);
  ASSERT_TRUE(ledger.try_charge(30, Category::other));
  EXPECT_FALSE(ledger.try_charge(1, Category::other));
  ledger.refund(10, Category::weights);
  EXPECT_EQ(ledger.available_bytes(), 0) << "what went does not come back beyond the budget";
  ledger.refund(50, Category::weights);
  EXPECT_EQ(ledger.available_bytes(), 40);
  EXPECT_EQ(ledger.peak_bytes(), 120);
}

TEST(LedgerTest, KeepsTheCategoriesOfThePeakInstant) {
  Ledger ledger("test");
  ASSERT_TRUE(ledger.try_charge(70, Category::activations));
  ASSERT_TRUE(ledger.try_charge(30, Category::weights));
  ledger.refund(70, Category::activations);
  ASSERT_TRUE(ledger.try_charge(50, Category::factors));
  EXPECT_EQ(ledger.peak_bytes(), 100);
  EXPECT_EQ(ledger.peak_by_category()[Category::activations], 70);
  EXPECT_EQ(ledger.peak_by_category()[Category::factors], 0);
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak_bytes(), 80);
}

TEST(LedgerTest, MovesBytesBetweenCategoriesWithoutChangingTheTotal) {
  Ledger ledger("test");
  ASSERT_TRUE(ledger.try_charge(10, Category::workspace));
  ledger.recategorize(10, Category::workspace, Category::gradients);
  EXPECT_EQ(ledger.used_bytes(), 10);
  EXPECT_EQ(ledger.used_by_category()[Category::gradients], 10);
  EXPECT_EQ(ledger.used_by_category()[Category::workspace], 0);
}

TEST(LedgerTest, RefusesABudgetBelowWhatIsHeld) {
  Ledger ledger("test");
  ASSERT_TRUE(ledger.try_charge(10, Category::other));
  EXPECT_THROW(ledger.set_budget(9), OutOfBudget);
  EXPECT_EQ(ledger.budget_bytes(), kUnlimitedBytes);
}

TEST(LedgerTest, CountsChargesOfManyThreadsExactly) {
  Ledger ledger("test", 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i)
        if (ledger.try_charge(300, Category::other)) ledger.refund(300, Category::other);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ledger.used_bytes(), 0);
  EXPECT_LE(ledger.peak_bytes(), 1000);
}

TEST(DeviceMemoryTest, ThrowsOutOfBudgetWithBytesWhenNobodyCanMakeRoom) {
  Arena arena(1 << 20);
  Ledger ledger("cpu", 4096);
  DeviceMemory memory(arena, ledger);
  Block* block = memory.allocate(1024, Category::other);
  EXPECT_EQ(ledger.used_bytes(), DeviceMemory::charge_of(1024));
  EXPECT_EQ(Block::of(block->data), block);
  try {
    memory.allocate(4096, Category::other);
    FAIL() << "exceeded the budget";
  } catch (const OutOfBudget& error) {
    EXPECT_EQ(error.requested_bytes(), DeviceMemory::charge_of(4096));
  }
  memory.release(block);
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(DeviceMemoryTest, GivesABlocksChargeBackOnlyOnceItsBytesAreBack) {
  Arena arena(1 << 24);
  Ledger ledger("test");
  DeviceMemory memory(arena, ledger);
  Block* block = memory.allocate(1 << 20, Category::other);
  const int64_t charged_bytes = block->charged_bytes;
  int64_t charged_meanwhile = 0;
  // The arena is observed because otherwise the charge could pass to another thread while both hold memory.
  arena.observe_deallocations([&](void*, int64_t) { charged_meanwhile = ledger.used_bytes(); });
  memory.free(block);
  EXPECT_EQ(charged_meanwhile, charged_bytes);
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(DeviceMemoryTest, AsksTheReclaimerUntilTheChargeFits) {
  Arena arena(1 << 20);
  Ledger ledger("cpu", 4096);
  DeviceMemory memory(arena, ledger);
  struct : Reclaimer {
    DeviceMemory* memory = nullptr;
    std::vector<Block*> held;
    void reclaim(int64_t) override {
      if (held.empty()) throw OutOfBudget("nothing left", 0, 0);
      memory->free(held.back());
      held.pop_back();
    }
  } reclaimer;
  reclaimer.memory = &memory;
  memory.set_reclaimer(&reclaimer);
  for (int i = 0; i < 3; ++i) reclaimer.held.push_back(memory.allocate(1024, Category::other));
  Block* big = memory.allocate(2048, Category::other);
  EXPECT_EQ(reclaimer.held.size(), 1u);
  EXPECT_THROW(memory.allocate(4096, Category::other), OutOfBudget);
  memory.release(big);
}

}  // namespace spillway
