#include "core/memory/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/memory/host_slab.h"

namespace spillway {

TEST(ArenaTest, GivesTheSameMemoryAgain) {
  Arena arena(1 << 24);
  void* first = arena.try_allocate(1 << 20);
  arena.deallocate(first, 1 << 20);
  EXPECT_EQ(arena.try_allocate(1 << 20), first);
}

TEST(ArenaTest, MergesFreedNeighbours) {
  Arena arena(4 << 20);
  void* a = arena.try_allocate(1 << 20);
  void* b = arena.try_allocate(1 << 20);
  void* c = arena.try_allocate(2 << 20);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(arena.try_allocate(1 << 20), nullptr);
  arena.deallocate(a, 1 << 20);
  arena.deallocate(c, 2 << 20);
  arena.deallocate(b, 1 << 20);
  EXPECT_NE(arena.try_allocate(4 << 20), nullptr);
}

TEST(ArenaTest, BlocksNeverOverlapUnderRandomUse) {
  Arena arena(64 << 20);
  std::mt19937 random(7);
  struct Held {
    unsigned char* data;
    int64_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 4000; ++i) {
    if (held.size() > 20 || (!held.empty() && random() % 2)) {
      size_t k = random() % held.size();
      for (int64_t b = 0; b < held[k].bytes; b += 997) ASSERT_EQ(held[k].data[b], held[k].mark);
      arena.deallocate(held[k].data, held[k].bytes);
      held[k] = held.back();
      held.pop_back();
    } else {
      int64_t bytes = 1 + static_cast<int64_t>(random() % (random() % 2 ? 2 << 20 : 5000));
      auto* data = static_cast<unsigned char*>(arena.try_allocate(bytes));
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % Arena::kAlignment, 0u);
      std::memset(data, i & 255, static_cast<size_t>(bytes));
      held.push_back({data, bytes, static_cast<unsigned char>(i & 255)});
    }
  }
  int64_t sum = 0;
  for (auto& h : held) sum += h.bytes;
  EXPECT_EQ(arena.used_bytes(), sum);
  for (auto& h : held) arena.deallocate(h.data, h.bytes);
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST(ArenaTest, ShowsBlocksThatComeBackBeforeTheyAreGivenAgain) {
  Arena arena(1 << 24);
  for (int64_t bytes : {int64_t{100}, int64_t{1} << 20}) {
    void* seen = nullptr;
    arena.observe_deallocations([&](void* data, int64_t size) {
      EXPECT_EQ(size, bytes);
      EXPECT_EQ(arena.used_bytes(), bytes);  // still held
      seen = data;
    });
    void* block = arena.try_allocate(bytes);
    arena.deallocate(block, bytes);
    EXPECT_EQ(seen, block);
    arena.observe_deallocations(nullptr);
    arena.deallocate(arena.try_allocate(bytes), bytes);
  }
}

TEST(ArenaTest, SmallBlocksCountAgainstTheCapacityToo) {
  Arena arena(1 << 20);
  std::vector<void*> blocks;
  while (void* block = arena.try_allocate(60'000)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), (1u << 20) / 60'000);
  EXPECT_FALSE(arena.fits(60'000));
  EXPECT_FALSE(arena.fits(100'000));  // the range is free, but the capacity is exhausted
  EXPECT_TRUE(arena.fits(1000));
  EXPECT_LE(arena.peak_bytes(), 1 << 20);
  for (void* block : blocks) arena.deallocate(block, 60'000);
  EXPECT_TRUE(arena.fits(1 << 20));
}

TEST(ArenaTest, DividesARangeThatSomebodyElseMadeAndGivesItBack) {
  static int64_t given_back = 0;
  std::vector<char> memory(1 << 20);
  {
    Arena arena(MemoryRange(memory.data(), 1 << 20, [](char*, int64_t bytes) { given_back = bytes; }), 1 << 20);
    EXPECT_EQ(arena.try_allocate(1 << 20), memory.data());
  }
  EXPECT_EQ(given_back, 1 << 20);
}

TEST(HostSlabTest, SaysHowManyBytesAreMissing) {
  HostSlab slab(1 << 20);
  void* block = slab.allocate(800 << 10);
  try {
    (void)slab.allocate(300 << 10);
    FAIL() << "found room that is not there";
  } catch (const OutOfBudget& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string((800 + 300 - 1024) << 10) + " more bytes"),
              std::string::npos)
        << error.what();
  }
  slab.deallocate(block, 800 << 10);
}

}  // namespace spillway
