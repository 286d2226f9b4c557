// Tests of windows: parts of absent pages that are read and written on the host, without paging in.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;

constexpr int64_t kBytes = 1 << 16;
const int64_t kCharge = DeviceMemory::charge_of(kBytes);

/// A device that holds two pages.
struct PagerWindowsTest : ::testing::Test {
  PagerWindowsTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  static WindowCopy whole() { return {.page_offset_bytes = 0, .run_bytes = kBytes, .dimensions = {}}; }
  void touch(Buffer& buffer) {
    PageUse use{buffer.page(), false, buffer.page()->use.next_use};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  }

  Arena arena{1 << 26};
  Ledger ledger{"test", 2 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 26};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
};

TEST(WindowCopyTest, RunsAreAsLongAsBothLayoutsAllow) {
  // The window has rows 2…4 of each of 3 planes of 8 × 10 floats, packed.
  WindowCopy rows = make_window_copy(4, 20, {{3, 80, 20}, {2, 10, 10}, {10, 1, 1}});
  EXPECT_EQ(rows.run_bytes, 80);
  EXPECT_EQ(rows.bytes(), 240);
  std::vector<std::pair<int64_t, int64_t>> runs;
  rows.for_each_run([&](int64_t page, int64_t memory) { runs.emplace_back(page, memory); });
  EXPECT_EQ(runs, (std::vector<std::pair<int64_t, int64_t>>{{80, 0}, {400, 80}, {720, 160}}));
  // Whole planes are one run; a dimension of one element never ends a run.
  EXPECT_EQ(make_window_copy(4, 0, {{3, 80, 80}, {1, 7, 9}, {8, 10, 10}, {10, 1, 1}}).run_bytes, 960);
  // Where only one side is dense, runs end at the other side's gaps.
  EXPECT_EQ(make_window_copy(4, 0, {{8, 10, 12}, {10, 1, 1}}).run_bytes, 40);
  EXPECT_EQ(make_window_copy(4, 5, {}).bytes(), 4);
}

TEST(WindowCopyTest, RunsHaveAsFewDimensionsAsBothLayoutsAllow) {
  // Planes 2…3 of every channel of every sample: samples and channels are one dimension, on both sides.
  const WindowCopy planes = make_window_copy(4, 160, {{2, 2400, 480}, {3, 800, 160}, {2, 80, 80}, {80, 1, 1}});
  EXPECT_EQ(planes.run_bytes, 640);
  ASSERT_EQ(planes.dimensions.size(), 1);
  EXPECT_EQ(planes.dimensions[0].count, 6);
  EXPECT_EQ(planes.dimensions[0].page_stride_bytes, 3200);
  EXPECT_EQ(planes.dimensions[0].memory_stride_bytes, 640);
  // Where only one side is regular, both dimensions stay.
  EXPECT_EQ(make_window_copy(4, 0, {{2, 2400, 500}, {3, 800, 160}, {160, 1, 1}}).dimensions.size(), 2);
}

TEST(WindowCopyTest, APackedWindowHasTheSameRunsWithoutGaps) {
  const WindowCopy rows = make_window_copy(4, 20, {{3, 80, 24}, {2, 20, 12}, {10, 1, 1}});
  std::vector<int64_t> places, packed_places, packed_pages;
  rows.for_each_run([&](int64_t, int64_t memory) { places.push_back(memory); });
  rows.packed().for_each_run([&](int64_t page, int64_t memory) {
    packed_pages.push_back(page);
    packed_places.push_back(memory);
  });
  EXPECT_EQ(packed_places, places);
  EXPECT_EQ(packed_pages, (std::vector<int64_t>{0, 40, 80, 120, 160, 200}));
}

TEST_F(PagerWindowsTest, ReadsAndWritesStridedWindowsOfAnAbsentPage) {
  auto a = buffer(1);
  auto b = buffer(2), c = buffer(3);
  ASSERT_FALSE(a->present());
  // The window has two runs of 1000 bytes, 8000 apart on the page and 2000 apart in memory.
  WindowCopy window{.page_offset_bytes = 500, .run_bytes = 1000, .dimensions = {{2, 8000, 2000}}};
  std::vector<unsigned char> bytes(3000, 0);
  PageUse use{a->page(), true};
  ASSERT_FALSE(pager.windows().pin(use));
  pager.windows().read_window(*a->page(), window, bytes.data());
  for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], i < 1000 || i >= 2000 ? 1 : 0) << i;
  std::iota(bytes.begin(), bytes.end(), 7);
  pager.windows().write_window(*a->page(), window, bytes.data());
  pager.windows().unpin(use, false);
  EXPECT_FALSE(a->present());
  touch(*a);
  const auto* data = static_cast<const unsigned char*>(a->page()->block->data);
  for (size_t i = 0; i < static_cast<size_t>(kBytes); ++i) {
    const bool first = i >= 500 && i < 1500, second = i >= 8500 && i < 9500;
    ASSERT_EQ(data[i], first ? bytes[i - 500] : second ? bytes[i - 8500 + 2000] : 1) << i;
  }
  EXPECT_EQ(pager.stats().bytes_in, kBytes + 2000);
  EXPECT_LE(ledger.peak_bytes(), 2 * kCharge);
}

TEST_F(PagerWindowsTest, APageBornOnTheHostHoldsNoDeviceBytesAndComesWhenItIsNeeded) {
  auto a = buffer(1), b = buffer(2);
  Buffer born(memory, pager, kBytes, Buffer::Absent());
  EXPECT_EQ(ledger.used_bytes(), 2 * kCharge);
  EXPECT_TRUE(a->present() && b->present());
  std::vector<unsigned char> bytes(kBytes, 9);
  PageUse use{born.page(), true};
  ASSERT_FALSE(pager.windows().pin(use));
  pager.windows().write_window(*born.page(), whole(), bytes.data());
  pager.windows().unpin(use, false);
  touch(born);
  EXPECT_TRUE(born.holds(9));
  EXPECT_EQ(pager.stats().clean_drops, 1);  // a was dropped clean; the born page is clean, too:
  touch(*a);
  touch(*b);
  EXPECT_FALSE(born.present());
  EXPECT_EQ(pager.stats().page_outs, 2);  // a and b, once each
}

TEST_F(PagerWindowsTest, APageBornOnTheHostTakesItsHostBytesWithIt) {
  const int64_t before = host.used_bytes();
  { Buffer born(memory, pager, kBytes, Buffer::Absent()); }
  EXPECT_EQ(host.used_bytes(), before);
}

TEST_F(PagerWindowsTest, AResidentPageThatIsPinnedStaysAndIsDirtyWhenPinnedForWriting) {
  auto a = buffer(1), b = buffer(2);
  PageUse read{a->page(), false};
  ASSERT_TRUE(pager.windows().pin(read));
  auto c = buffer(3);
  EXPECT_TRUE(a->present());  // b left, though it was used later
  EXPECT_FALSE(b->present());
  pager.windows().unpin(read, true);
  pager.evict_all();
  touch(*a);
  PageUse write{a->page(), true};
  ASSERT_TRUE(pager.windows().pin(write));
  a->fill(5);
  pager.windows().unpin(write, true);
  pager.evict_all();
  ASSERT_FALSE(a->present());
  touch(*a);
  EXPECT_TRUE(a->holds(5));
}

TEST_F(PagerWindowsTest, NobodyBringsInAPageThatIsPinnedAbsent) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  c.reset();
  ASSERT_FALSE(a->present());
  PageUse use{a->page(), false};
  ASSERT_FALSE(pager.windows().pin(use));
  EXPECT_FALSE(pager.prefetcher().try_page_in(a->page()->id));
  std::atomic<bool> came = false;
  std::thread other([&] {
    touch(*a);
    came = true;
  });
  while (pager.table().locked([&] { return a->page()->leases; }) < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(came);
  EXPECT_FALSE(a->present());
  pager.windows().unpin(use, false);
  other.join();
  EXPECT_TRUE(a->holds(1));
}

TEST_F(PagerWindowsTest, APinWaitsForAPageThatIsOnItsWay) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  b.reset();  // a copy may still read b's bytes
  while (!pager.prefetcher().try_page_in(a->page()->id)) std::this_thread::yield();
  PageUse use{a->page(), false};
  ASSERT_TRUE(pager.windows().pin(use));
  EXPECT_TRUE(a->holds(1));
  pager.windows().unpin(use, true);
}

TEST_F(PagerWindowsTest, MakesABlockOnlyOfWhatIsUsedLaterAndNotKept) {
  auto a = buffer(1), b = buffer(2);
  pager.table().set_next_use(*a->page(), 10);
  pager.table().set_next_use(*b->page(), 20);
  EXPECT_EQ(pager.windows().try_allocate(kBytes, Category::other, 20, {}), nullptr);
  PageUse keep{b->page(), false};
  EXPECT_EQ(pager.windows().try_allocate(kBytes, Category::other, 15, {&keep, 1}), nullptr);
  EXPECT_TRUE(a->present() && b->present());
  Block* block = pager.windows().try_allocate(kBytes, Category::other, 15, {});
  ASSERT_NE(block, nullptr);
  EXPECT_TRUE(a->present());
  EXPECT_FALSE(b->present());
  memory.free(block);
  block = pager.windows().try_allocate(2 * kBytes - 1024, Category::other, -1, {});  // all pages must leave
  EXPECT_FALSE(a->present());
  ASSERT_NE(block, nullptr);
  memory.free(block);
}

TEST_F(PagerWindowsTest, AdmitsAPageWhereOnlyWhatIsUsedLaterMustLeave) {
  auto a = buffer(1), b = buffer(2), c = buffer(3);
  ASSERT_FALSE(a->present());
  pager.table().set_next_use(*b->page(), 10);
  pager.table().set_next_use(*c->page(), 20);
  pager.windows().prefetch_for_window(*a->page(), 20, {});
  EXPECT_FALSE(a->present());
  PageUse keep{c->page(), false};
  pager.windows().prefetch_for_window(*a->page(), 15, {&keep, 1});
  EXPECT_FALSE(a->present());
  pager.windows().prefetch_for_window(*a->page(), 15, {});
  EXPECT_TRUE(a->holds(1));
  EXPECT_TRUE(b->present());
  EXPECT_FALSE(c->present());
  EXPECT_EQ(a->page()->leases + b->page()->leases + c->page()->leases, 0);
}

/// An arena that claims to be full when it is told to.
struct FullBlocks final : BlockSource {
  explicit FullBlocks(Arena& from) : arena(from) {}
  Block* try_acquire(int64_t charge, Category category) override {
    return full ? nullptr : arena.try_acquire(charge, category);
  }
  void return_block(Block* block) noexcept override { arena.return_block(block); }
  ArenaBlocks arena;
  bool full = false;
};

TEST_F(PagerWindowsTest, MakesNoBlockWhereTheDeviceIsFullBeforeTheBudgetIs) {
  FullBlocks blocks(arena);
  DeviceMemory device(blocks, ledger);
  Pager other(device, host, out, in, 0);
  blocks.full = true;
  Block* block = nullptr;
  EXPECT_NO_THROW(block = other.windows().try_allocate(kBytes, Category::other, -1, {}));
  EXPECT_EQ(block, nullptr);
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST_F(PagerWindowsTest, OnAGpuBytesThatAnotherThreadIsAboutToFreeAreWaitedFor) {
  FullBlocks blocks(arena);
  Ledger gpu_ledger("gpu", 2 * kBytes);
  DeviceMemory gpu(blocks, gpu_ledger);
  Pager other(gpu, host, out, in, 0);
  gpu.set_reclaimer(&other);
  // Another thread may be late on a busy machine, so it gets several attempts.
  bool waited = false;
  for (int attempt = 0; attempt < 20 && !waited; ++attempt) {
    Block* last_of_backward = gpu.allocate(kBytes, Category::activations);  // belongs to no page
    std::atomic<bool> returned = false;
    std::thread autograd([&] {
      while (!returned) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      gpu.release(last_of_backward);
    });
    returned = true;
    try {
      gpu.release(gpu.allocate(kBytes + kBytes / 2, Category::activations));
      waited = true;
    } catch (const OutOfBudget&) {
    }
    autograd.join();
  }
  EXPECT_TRUE(waited);
  Block* stays = gpu.allocate(kBytes, Category::activations);
  EXPECT_THROW((void)gpu.allocate(kBytes + kBytes / 2, Category::activations), OutOfBudget) << "nobody frees anything";
  gpu.release(stays);
  gpu.set_reclaimer(nullptr);
}

TEST_F(PagerWindowsTest, MakesNoBlockOfWhatCannotBeCopiedOut) {
  HostSlab small(kBytes / 2);
  Pager other(memory, small, out, in, 0);
  memory.set_reclaimer(&other);
  {
    Buffer a(memory, other, kBytes, 1), b(memory, other, kBytes, 2);
    Block* block = nullptr;
    EXPECT_NO_THROW(block = other.windows().try_allocate(kBytes, Category::other, -1, {}));
    EXPECT_EQ(block, nullptr);
    EXPECT_TRUE(a.holds(1) && b.holds(2));
  }
  memory.set_reclaimer(&pager);
}

TEST_F(PagerWindowsTest, AFullHostRefusesABirthAndKeepsNothingOfIt) {
  HostSlab small(kBytes);
  Pager other(memory, small, out, in, 0);
  memory.set_reclaimer(&other);
  {
    Buffer first(memory, other, kBytes, Buffer::Absent());
    EXPECT_THROW(Buffer(memory, other, kBytes, Buffer::Absent()), OutOfBudget);
  }
  EXPECT_EQ(small.used_bytes(), 0);
  memory.set_reclaimer(&pager);
}

TEST_F(PagerWindowsTest, WindowsReachPagesOnDisk) {
  constexpr int64_t kLarge = 700 << 10;
  testing::TemporaryFolder folder;
  HostSlab slab(2 << 20);
  DiskTier disk(folder.path(), slab);
  Pager other(memory, slab, out, in, 0, &disk);
  memory.set_reclaimer(&other);
  {
    std::vector<std::unique_ptr<Buffer>> pages;
    for (int i = 0; i < 6; ++i) pages.push_back(std::make_unique<Buffer>(memory, other, kLarge, Buffer::Absent()));
    EXPECT_GT(disk.stats().bytes_written, 0);
    WindowCopy every_fourth{.page_offset_bytes = 0, .run_bytes = 1000, .dimensions = {{kLarge / 4000, 4000, 1000}}};
    auto each = [&](auto visit) {
      for (size_t i = 0; i < pages.size(); ++i) {
        PageUse use{pages[i]->page(), true};
        ASSERT_FALSE(other.windows().pin(use));
        visit(*use.page, static_cast<char>(i + 1));
        other.windows().unpin(use, false);
      }
    };
    each([&](Page& page, char value) {
      const std::vector<char> bytes(static_cast<size_t>(every_fourth.bytes()), value);
      other.windows().write_window(page, every_fourth, bytes.data());
    });
    each([&](Page& page, char value) {
      std::vector<char> bytes(static_cast<size_t>(every_fourth.bytes()), 0);
      other.windows().read_window(page, every_fourth, bytes.data());
      EXPECT_EQ(bytes, std::vector<char>(bytes.size(), value));
    });
  }
  memory.set_reclaimer(&pager);
}

}  // namespace
}  // namespace spillway
