#include "swap/tiers/host_tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"

namespace spillway {
using namespace swap;
namespace {

using testing::DiskSwitch;
using testing::switched;
using testing::TemporaryFolder;

constexpr int64_t kBytes = 1 << 20;

std::vector<char> filled(int64_t bytes, char value) {
  return std::vector<char>(static_cast<size_t>(bytes), value);
}

/// A slab for three pages beside the disk's buffers, and a disk that tests can stop.
struct HostTierTest : ::testing::Test {
  HostCopy put(char value, int64_t next_use, uint64_t last_use = 0, int64_t bytes = kBytes) {
    Ticket ticket;
    device = filled(bytes, value);
    HostCopy copy = tier.page_out(device.data(), bytes, {next_use, last_use}, ticket);
    ticket.wait();
    tier.mark_last_copy(copy, {next_use, last_use});
    return copy;
  }
  std::vector<char> get(HostCopy& copy, int64_t bytes = kBytes) {
    std::vector<char> back(static_cast<size_t>(bytes));
    tier.page_in(copy, back.data()).wait();
    return back;
  }
  void wait_for_started(size_t operations) {
    std::unique_lock lock(control->mutex);
    control->changed.wait(lock, [&] { return control->started.size() >= operations; });
  }
  /// Waits up to 5 s for the tier's own work on the disk, until `condition` holds.
  void until(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(condition());
  }

  TemporaryFolder folder;
  HostSlab slab{4 << 20};
  std::shared_ptr<DiskSwitch> control = std::make_shared<DiskSwitch>();
  DiskTier disk{folder.path(), slab, {.decorate_io = switched(control)}};
  WorkerTimeline out{"out"}, in{"in"};
  HostTier tier{slab, out, in, &disk};
  std::vector<char> device;
};

TEST(HostTierRoomTest, ACopyThatIsRefusedLeavesItsRoomFree) {
  HostSlab slab(kBytes);
  testing::RefusingTimeline out, in;
  HostTier tier(slab, out, in, nullptr);
  const std::vector<char> device = filled(kBytes, 'x');
  Ticket ticket;
  out.refuse(1);
  EXPECT_THROW((void)tier.page_out(device.data(), kBytes, {}, ticket), std::bad_alloc);
  EXPECT_EQ(tier.free_bytes(), kBytes);
  HostCopy copy = tier.page_out(device.data(), kBytes, {}, ticket);
  ticket.wait();
  std::vector<char> back(kBytes);
  in.refuse(1);
  EXPECT_THROW((void)tier.page_in(copy, back.data()), std::bad_alloc);
  tier.page_in(copy, back.data()).wait();
  EXPECT_EQ(back, device);
  copy.reset();
  EXPECT_EQ(tier.free_bytes(), kBytes);
}

TEST(HostTierRoomTest, RoomThatACopyStillUsesIsNobodyElses) {
  HostSlab slab(kBytes);
  testing::ManualTimeline out, in;
  HostTier tier(slab, out, in, nullptr);
  const std::vector<char> device = filled(kBytes, 'x');
  Ticket ticket;
  HostCopy copy = tier.page_out(device.data(), kBytes, {}, ticket);
  copy.reset();
  EXPECT_EQ(slab.used_bytes(), kBytes);
  EXPECT_FALSE(tier.has_room(kBytes));
  out.finish_one();
  HostCopy next = tier.page_out(device.data(), kBytes, {}, ticket);
  EXPECT_EQ(slab.used_bytes(), kBytes);
  out.finish_one();
  (void)tier.page_in(next, const_cast<char*>(device.data()));
  next.reset();
  EXPECT_EQ(slab.used_bytes(), kBytes);
  in.finish_one();
}

TEST_F(HostTierTest, TheFurthestNextUseGoesToDiskFirst) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20);
  EXPECT_EQ(disk.stats().bytes_written, 0);
  HostCopy d = put('d', 5);
  EXPECT_TRUE(tier.in_slab(a));
  EXPECT_FALSE(tier.in_slab(b));
  HostCopy e = put('e', 6);
  EXPECT_FALSE(tier.in_slab(c));
  EXPECT_EQ(disk.stats().bytes_written, 2 * kBytes);
  for (auto [copy, value] : {std::pair(&a, 'a'), {&b, 'b'}, {&c, 'c'}, {&d, 'd'}, {&e, 'e'}})
    EXPECT_EQ(get(*copy), filled(kBytes, value)) << value;
  EXPECT_LE(slab.peak_bytes(), slab.capacity_bytes());
}

TEST_F(HostTierTest, WhereNextUsesAreUnknownTheLeastRecentlyUsedGoesFirst) {
  HostCopy a = put('a', kNextUseUnknown, 2), b = put('b', kNextUseUnknown, 1), c = put('c', 7, 0);
  HostCopy d = put('d', kNextUseUnknown, 3);
  EXPECT_TRUE(tier.in_slab(a));
  EXPECT_FALSE(tier.in_slab(b));
  EXPECT_TRUE(tier.in_slab(c));
}

TEST_F(HostTierTest, AnArrivingPageThatIsNeededLastGoesToDiskItself) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20);
  HostCopy d = put('d', 40);
  EXPECT_TRUE(tier.in_slab(b));
  EXPECT_FALSE(tier.in_slab(d));
  EXPECT_EQ(get(d), filled(kBytes, 'd'));
  EXPECT_EQ(get(b), filled(kBytes, 'b'));
}

TEST_F(HostTierTest, APageLargerThanTheSlabLivesOnDisk) {
  HostCopy large = put('l', 1, 0, 3 * slab.capacity_bytes() + 5);
  EXPECT_EQ(get(large, 3 * slab.capacity_bytes() + 5), filled(3 * slab.capacity_bytes() + 5, 'l'));
  EXPECT_LE(slab.peak_bytes(), slab.capacity_bytes());
}

TEST_F(HostTierTest, ComesBackAheadOfItsUseIntoFreeRoomAndLeavesAgainWithoutBeingWritten) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5), e = put('e', 6);
  ASSERT_FALSE(tier.in_slab(b));
  ASSERT_FALSE(tier.in_slab(c));
  a.reset();
  EXPECT_EQ(get(d), filled(kBytes, 'd'));  // pages are coming back: one more fits, the soonest
  until([&] { return tier.in_slab(c); });
  EXPECT_FALSE(tier.in_slab(b));
  const int64_t read = disk.stats().bytes_read, written = disk.stats().bytes_written;
  EXPECT_EQ(get(c), filled(kBytes, 'c'));
  EXPECT_EQ(disk.stats().bytes_read, read);
  HostCopy f = put('f', 7);  // c leaves; it still has its place on disk
  EXPECT_FALSE(tier.in_slab(c));
  EXPECT_EQ(disk.stats().bytes_written, written);
  EXPECT_EQ(get(c), filled(kBytes, 'c'));
}

/// Checks that a page keeps its next use when a plan lets it leave.
TEST_F(HostTierTest, WhatAPlanReleasedGoesToDiskAndComesBackByItsNextUse) {
  Arena arena(1 << 26);
  Ledger ledger("test", 1 << 26);
  DeviceMemory memory(arena, ledger);
  Pager pager(memory, slab, out, in, 0, &disk);
  std::deque<testing::Buffer> sooner, later;
  for (int i = 0; i < 5; ++i) {
    auto& buffer = (i < 3 ? sooner : later).emplace_back(memory, pager, kBytes, static_cast<unsigned char>(i));
    pager.table().set_next_use(*buffer.page(), 10 + i);
    pager.table().evict_first(buffer.page()->id);
  }
  pager.evict_all();
  until([&] { return disk.stats().bytes_written == 2 * kBytes; });
  while (sooner.size() > 1) sooner.pop_back();
  const PageUse use{sooner[0].page(), false};
  pager.lease({&use, 1});  // the returning page makes room; others return ahead of use
  pager.unlease({&use, 1});
  until([&] { return disk.stats().bytes_read == 2 * kBytes; });
}

TEST_F(HostTierTest, CountsWhatTheLanesAndTheDiskDidAndHowLongTheyWereBusy) {
  const LaneTotals before = tier.copied();
  HostCopy a = put('a', 1), b = put('b', 2), c = put('c', 3), last = put('d', 4);
  ASSERT_FALSE(tier.in_slab(last));
  EXPECT_EQ(get(last), filled(kBytes, 'd'));
  const LaneTotals did = tier.copied().since(before);
  EXPECT_EQ(did.to_disk.bytes, disk.stats().bytes_written);
  EXPECT_GE(did.to_disk.bytes, kBytes);
  EXPECT_GE(did.from_disk.bytes, kBytes);
  EXPECT_EQ(did.out.bytes, 4 * kBytes);
  for (const CopyTotals& lane : {did.to_disk, did.from_disk, did.out}) EXPECT_GT(lane.seconds, 0);
}

TEST_F(HostTierTest, APageThatIsWantedWhileItComesBackIsReadOnce) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  a.reset();
  control->pause(true);
  const size_t before = control->order().size();
  EXPECT_EQ(get(d), filled(kBytes, 'd'));
  wait_for_started(before + 1);  // b is being read
  std::vector<char> back(kBytes);
  Ticket ticket = tier.page_in(b, back.data());
  EXPECT_FALSE(ticket.done());
  control->pause(false);
  ticket.wait();
  EXPECT_EQ(back, filled(kBytes, 'b'));
  EXPECT_EQ(disk.stats().bytes_read, kBytes);
}

TEST_F(HostTierTest, APageInOutlivesTheCopyThatIsLetGoOfWhileItComesBack) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  a.reset();
  control->pause(true);
  const size_t before = control->order().size();
  EXPECT_EQ(get(d), filled(kBytes, 'd'));
  wait_for_started(before + 1);  // b is being read
  std::vector<char> back(kBytes);
  Ticket ticket = tier.page_in(b, back.data());
  b.reset();
  control->pause(false);
  ticket.wait();
  EXPECT_EQ(back, filled(kBytes, 'b'));
  c.reset();
  d.reset();
  HostCopy e = put('e', 1), f = put('f', 2), g = put('g', 3);  // all of its room is free again
  EXPECT_TRUE(tier.in_slab(e) && tier.in_slab(f) && tier.in_slab(g));
}

TEST_F(HostTierTest, AFailedPageInIsNoErrorOfARangeThatIsReadOrChangedLater) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  ASSERT_FALSE(tier.in_slab(b));
  std::vector<char> back(kBytes);
  control->fail(0, EIO);
  EXPECT_THROW(tier.page_in(b, back.data()).wait(), DiskError);
  control->fail(0);
  char byte = 0;
  EXPECT_NO_THROW(tier.read(b, 7, 1, &byte));
  EXPECT_EQ(byte, 'b');
  EXPECT_NO_THROW(tier.write(b, 7, 1, "x"));
  EXPECT_NO_THROW(tier.read(b, 7, 1, &byte));
  EXPECT_EQ(byte, 'x');
  EXPECT_NO_THROW(tier.read_window(b, {.page_offset_bytes = 8, .run_bytes = 1, .dimensions = {}}, &byte).wait());
  EXPECT_EQ(byte, 'b');
}

TEST_F(HostTierTest, AFullDiskFailsThePageOutThatNeedsItAndNothingElse) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20);
  control->fail(ENOSPC);
  auto source = filled(kBytes, 'd');
  for (int64_t next_use : {5, 50}) {  // b's spill fails, then the direct write to disk
    Ticket ticket;
    HostCopy d = tier.page_out(source.data(), kBytes, {next_use, 0}, ticket);
    EXPECT_THROW(ticket.wait(), DiskError);
  }
  for (auto [copy, value] : {std::pair(&a, 'a'), {&b, 'b'}, {&c, 'c'}})
    EXPECT_EQ(get(*copy), filled(kBytes, value)) << value;
  EXPECT_EQ(disk.stats().used_bytes, 0);
  control->fail(0);
  HostCopy d = put('d', 5);
  EXPECT_EQ(get(d), filled(kBytes, 'd'));
  EXPECT_EQ(get(b), filled(kBytes, 'b'));
}

TEST_F(HostTierTest, APageThatCannotBeReadIsThePageInsError) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  a.reset();
  control->fail(0, EIO);
  EXPECT_EQ(get(d), filled(kBytes, 'd'));  // starts to bring b back, which fails
  std::vector<char> back(kBytes);
  Ticket ticket = tier.page_in(b, back.data());
  EXPECT_THROW(ticket.wait(), DiskError);
  control->fail(0);
  EXPECT_EQ(get(b), filled(kBytes, 'b'));
}

TEST(HostTierWindowTest, ADiskThatFailsWithinAWindowLeavesNoCopyUnderWay) {
  TemporaryFolder folder;
  HostSlab slab(1 << 20);
  auto control = std::make_shared<DiskSwitch>();
  DiskTier disk(folder.path(), slab, {.decorate_io = switched(control)});
  WorkerTimeline out("out");
  testing::ManualTimeline in;
  HostTier tier(slab, out, in, &disk);
  const auto page = filled(2 << 20, 'a');  // larger than the slab
  Ticket ticket;
  HostCopy copy = tier.page_out(page.data(), 2 << 20, {}, ticket);
  ticket.wait();
  const WindowCopy window{.page_offset_bytes = 0, .run_bytes = 64, .dimensions = {{3, 512 << 10, 64}}};
  std::vector<char> device(3 * 64);
  control->fail(0, EIO, 1);
  EXPECT_THROW((void)tier.read_window(copy, window, device.data()), DiskError);
  EXPECT_EQ(in.pending(), 0u);  // no copy of the first run, whose staging memory is freed
}

/// A lane that fails its first copy and runs all others.
class FirstCopyFails final : public testing::RunwiseTimeline {
 public:
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    if (failed_) return lane_.copy(destination, source, bytes);
    failed_ = true;
    TicketSource failure;
    failure.complete(std::make_exception_ptr(testing::CopyFailed()));
    return failure.ticket();
  }

 private:
  bool failed_ = false;
  WorkerTimeline lane_{"first fails"};
};

TEST(HostTierWindowsTest, AWindowFailsWithAnyOfItsRuns) {
  HostSlab slab(1 << 20);
  WorkerTimeline out("out");
  FirstCopyFails in;
  HostTier tier(slab, out, in, nullptr);
  const auto page = filled(4096, 'a');
  Ticket ticket;
  HostCopy copy = tier.page_out(page.data(), 4096, {}, ticket);
  ticket.wait();
  const WindowCopy window{.page_offset_bytes = 0, .run_bytes = 64, .dimensions = {{3, 512, 64}}};
  std::vector<char> device(3 * 64);
  EXPECT_THROW(tier.read_window(copy, window, device.data()).wait(), testing::CopyFailed);
  EXPECT_NO_THROW(tier.read_window(copy, window, device.data()).wait());
  EXPECT_EQ(device, filled(3 * 64, 'a'));
}

TEST_F(HostTierTest, ACopyThatIsLetGoOfWhileItIsWrittenGivesEverythingBack) {
  const int64_t buffers = slab.used_bytes();
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20);
  control->pause(true);
  auto source = filled(kBytes, 'd');
  Ticket ticket;
  HostCopy d = tier.page_out(source.data(), kBytes, {5, 0}, ticket);
  wait_for_started(1);
  b.reset();  // the disk still reads b's bytes
  EXPECT_FALSE(ticket.done());
  control->pause(false);
  ticket.wait();
  EXPECT_EQ(get(d), filled(kBytes, 'd'));
  a.reset();
  c.reset();
  d.reset();
  until([&] { return slab.used_bytes() == buffers && disk.stats().used_bytes == 0; });
}

TEST_F(HostTierTest, RangesAreReadAndChangedWhereverTheBytesAre) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  ASSERT_TRUE(tier.in_slab(a));
  ASSERT_FALSE(tier.in_slab(b));
  for (HostCopy* copy : {&a, &b}) {
    auto expected = get(*copy);
    for (int64_t begin : {int64_t{0}, int64_t{65'000}, kBytes - 3}) {
      const int64_t bytes = std::min<int64_t>(1000, kBytes - begin);
      const auto change = filled(bytes, static_cast<char>('0' + begin % 7));
      tier.write(*copy, begin, bytes, change.data());
      std::copy(change.begin(), change.end(), expected.begin() + begin);
      std::vector<char> back(static_cast<size_t>(bytes) + 1, '!');
      tier.read(*copy, begin + 1, bytes - 1, back.data());
      EXPECT_EQ(std::memcmp(back.data(), expected.data() + begin + 1, static_cast<size_t>(bytes - 1)), 0);
      EXPECT_EQ(back[static_cast<size_t>(bytes - 1)], '!');
    }
    EXPECT_EQ(get(*copy), expected);
  }
}

TEST_F(HostTierTest, AChangeAfterAPlaceOnDiskWasWrittenIsNotLostWhenTheCopyLeavesAgain) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20), d = put('d', 5);
  a.reset();
  (void)get(d);
  until([&] { return tier.in_slab(b); });
  tier.write(b, 100, 5, "hello");
  HostCopy e = put('e', 6);
  ASSERT_FALSE(tier.in_slab(b));
  auto expected = filled(kBytes, 'b');
  std::memcpy(expected.data() + 100, "hello", 5);
  EXPECT_EQ(get(b), expected);
}

TEST_F(HostTierTest, AChangeWaitsForTheDiskThatReadsTheBytes) {
  HostCopy a = put('a', 10), b = put('b', 30), c = put('c', 20);
  control->pause(true);
  auto source = filled(kBytes, 'd');
  Ticket ticket;
  HostCopy d = tier.page_out(source.data(), kBytes, {5, 0}, ticket);
  wait_for_started(1);
  std::atomic<bool> changed = false;
  std::thread writer([&] {
    tier.write(b, 0, 5, "hello");
    changed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(changed);
  control->pause(false);
  writer.join();
  ticket.wait();
  auto expected = filled(kBytes, 'b');
  std::memcpy(expected.data(), "hello", 5);
  EXPECT_EQ(get(b), expected);
}

}  // namespace
}  // namespace spillway
