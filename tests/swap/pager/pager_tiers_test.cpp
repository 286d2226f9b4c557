// A pager above a full host, and above a disk.
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/disk.h"
#include "tests/swap/pager/pages.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;
using testing::kBytes;
using testing::kCharge;

TEST(PagerHostTest, CopiesOfPagesThatCameBackMakeWayWhenTheHostIsFull) {
  Arena arena(1 << 26);
  Ledger ledger("test", 2 * kCharge);
  DeviceMemory memory(arena, ledger);
  HostSlab host(2 * kBytes);
  WorkerTimeline out("out"), in("in");
  Pager pager(memory, host, out, in, 0);
  memory.set_reclaimer(&pager);
  Buffer a(memory, pager, kBytes, 1), b(memory, pager, kBytes, 2), c(memory, pager, kBytes, 3);
  ASSERT_FALSE(a.present());
  testing::touch(pager, a);
  ASSERT_FALSE(b.present());  // the host is full of b's only copy and one of a's two
  pager.table().set_next_use(*a.page(), 5);
  pager.table().set_next_use(*c.page(), 50);
  testing::touch(pager, b);
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
  void touch(Buffer& buffer) { testing::touch(pager, buffer); }
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
