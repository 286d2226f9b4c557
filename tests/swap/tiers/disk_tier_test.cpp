#include "swap/tiers/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <system_error>

#include "core/bytes.h"
#include "core/error.h"
#include "tests/support/copies.h"
#include "tests/support/disk.h"
#include "tests/support/disk_memory.h"

namespace spillway {
using namespace swap;
namespace {

using testing::DelayedTimeline;
using testing::DiskSwitch;
using testing::expect_parts;
using testing::Memory;
using testing::switched;
using testing::TemporaryFolder;

using Engine = DiskOptions::Engine;

std::string error_of(const Ticket& ticket) {
  try {
    ticket.wait();
  } catch (const DiskError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no DiskError came";
  return "";
}

struct DiskTierTest : ::testing::TestWithParam<Engine> {
  void SetUp() override {
    std::string why_not;
    if (GetParam() == Engine::uring && !make_uring_io(1, why_not)) GTEST_SKIP() << why_not;
    make();
  }
  void make() {
    tier.reset();
    tier = std::make_unique<DiskTier>(folder.path(), host,
                                      DiskOptions{.engine = GetParam(), .decorate_io = switched(control)});
  }
  std::shared_ptr<DiskPage> store(const Memory& memory) {
    auto page = tier->make_page(memory.bytes);
    tier->write(page, {memory.data}).wait();
    return page;
  }

  TemporaryFolder folder;
  HostSlab host{8 << 20};
  std::shared_ptr<DiskSwitch> control = std::make_shared<DiskSwitch>();
  std::unique_ptr<DiskTier> tier;
};
INSTANTIATE_TEST_SUITE_P(Engines, DiskTierTest, ::testing::Values(Engine::uring, Engine::threads),
                         [](const auto& info) { return info.param == Engine::uring ? "io_uring" : "threads"; });

TEST_P(DiskTierTest, GivesBackEveryByteOfEverySizeFromAnyAddress) {
  const int64_t chunk = tier->chunk_bytes();
  WorkerTimeline lane("device");
  uint32_t seed = 0;
  for (int64_t bytes : {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{70'001}, chunk, chunk + 1, 20 * chunk + 777})
    for (int64_t shift : {0, 64})
      for (Timeline* via : {static_cast<Timeline*>(nullptr), static_cast<Timeline*>(&lane)}) {
        SCOPED_TRACE(str(bytes, " bytes, shifted by ", shift, via ? ", past a lane" : ""));
        Memory from(bytes, shift), to(bytes, 64 - shift);
        from.fill(++seed);
        to.data[bytes] = 'o';
        auto page = tier->make_page(bytes);
        tier->write(page, {from.data, via}).wait();
        tier->read(page, {to.data, via}).wait();
        EXPECT_TRUE(to.same(from));
        EXPECT_EQ(to.data[bytes], 'o');
      }
}

TEST_P(DiskTierTest, ManyPagesAtOnceUnderLateOperationsKeepTheirBytes) {
  control->longest_delay = std::chrono::microseconds(200);
  DelayedTimeline lane(3, std::chrono::microseconds(100));
  std::mt19937 random(5);
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::shared_ptr<DiskPage>> pages;
  std::vector<Ticket> writes;
  for (uint32_t i = 0; i < 40; ++i) {
    memories.push_back(std::make_unique<Memory>(1 + random() % 700'000, i % 2 * 64));
    memories.back()->fill(i);
    pages.push_back(tier->make_page(memories.back()->bytes));
    writes.push_back(tier->write(pages.back(), {memories.back()->data, i % 3 ? nullptr : &lane}));
    if (i < 10) continue;
    const size_t k = random() % (i - 5);
    writes[k].wait();
    Memory back(memories[k]->bytes);
    Ticket read = tier->read(pages[k], {back.data, i % 4 ? nullptr : &lane});
    read.wait();
    ASSERT_TRUE(back.same(*memories[k])) << k;
  }
  for (const Ticket& ticket : writes) ticket.wait();
  int64_t stored = 0;
  for (const auto& memory : memories) stored += round_up(memory->bytes, PageFile::kAlignment);
  EXPECT_EQ(tier->stats().used_bytes, stored);
  EXPECT_EQ(tier->stats().peak_bytes, stored);
  pages.clear();
  EXPECT_EQ(tier->stats().used_bytes, 0);
}

TEST_P(DiskTierTest, ReadsAndChangesRangesAcrossChunks) {
  const int64_t chunk = tier->chunk_bytes(), bytes = 3 * chunk + 1000;
  Memory from(bytes), back(bytes);
  from.fill(1);
  auto page = store(from);
  std::mt19937 random(2);
  for (int i = 0; i < 30; ++i) {
    const auto begin = static_cast<int64_t>(random() % static_cast<uint32_t>(bytes));
    const auto length = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(bytes - begin));
    if (i % 2) {
      Memory part(length, 3);
      part.fill(static_cast<uint32_t>(i));
      tier->write_range(page, begin, length, part.data);
      std::memcpy(from.data + begin, part.data, static_cast<size_t>(length));
    }
    std::memset(back.data, 0, static_cast<size_t>(bytes));
    tier->read_range(page, begin, length, back.data);
    ASSERT_EQ(std::memcmp(back.data, from.data + begin, static_cast<size_t>(length)), 0) << begin << " " << length;
  }
  tier->read(page, {back.data}).wait();
  EXPECT_TRUE(back.same(from));
}

TEST_P(DiskTierTest, AFlippedBitIsAnErrorThatNamesFileOffsetAndChecksums) {
  const int64_t bytes = 2 * tier->chunk_bytes() + 100;
  Memory from(bytes), to(bytes);
  from.fill(1);
  auto page = store(from), other = store(from);
  const int file = ::open(tier->path().c_str(), O_RDWR);
  for (int64_t at : {int64_t{0}, tier->chunk_bytes() + 5, bytes - 1}) {
    char byte = static_cast<char>(from.data[at] ^ 1);
    ASSERT_EQ(::pwrite(file, &byte, 1, page->offset + at), 1);
    ::fsync(file);
    const int64_t chunk = at / tier->chunk_bytes() * tier->chunk_bytes();
    expect_parts(error_of(tier->read(page, {to.data})),
                 {tier->path().string(), "damaged", "offset " + std::to_string(page->offset + chunk), "checksum"});
    EXPECT_THROW(tier->read_range(page, at, 1, to.data), DiskError);
    byte = from.data[at];
    ASSERT_EQ(::pwrite(file, &byte, 1, page->offset + at), 1);
    ::fsync(file);
    EXPECT_NO_THROW(tier->read(page, {to.data}).wait());
  }
  ::close(file);
  tier->read(other, {to.data}).wait();
  EXPECT_TRUE(to.same(from));
}

TEST_P(DiskTierTest, AFileThatWasCutShortIsAnError) {
  Memory memory(3 << 20);
  memory.fill(1);
  auto page = store(memory);
  std::filesystem::resize_file(tier->path(), 1 << 20);
  expect_parts(error_of(tier->read(page, {memory.data})), {tier->path().string(), "the file ends before"});
}

TEST_P(DiskTierTest, AFailedWriteFreesItsRoomAndTheDiskGoesOn) {
  Memory memory(3 << 20), back(3 << 20);
  memory.fill(1);
  auto good = store(memory);
  const int64_t used = tier->stats().used_bytes;
  control->fail(ENOSPC);
  auto bad = tier->make_page(memory.bytes);
  std::exception_ptr told;
  Ticket ticket = tier->write(bad, {memory.data}, [&](const std::exception_ptr& error) { told = error; });
  expect_parts(error_of(ticket), {"cannot write", tier->path().string(), "No space left on device"});
  EXPECT_TRUE(told != nullptr);
  bad.reset();
  control->fail(0);
  auto next = store(memory);
  EXPECT_EQ(tier->stats().used_bytes, used + round_up(memory.bytes, PageFile::kAlignment));
  for (const auto& page : {good, next}) {
    std::memset(back.data, 0, static_cast<size_t>(back.bytes));
    tier->read(page, {back.data}).wait();
    EXPECT_TRUE(back.same(memory));
  }
  control->fail(0, EIO);
  expect_parts(error_of(tier->read(good, {back.data})), {"cannot read", "Input/output error"});
}

TEST_P(DiskTierTest, AChangeThatFailedLeavesWhatWasThereReadable) {
  Memory memory(2 * tier->chunk_bytes()), back(2 * tier->chunk_bytes());
  memory.fill(1);
  auto page = store(memory);
  const std::vector<char> other(5000, 'x');
  control->fail(EIO);
  EXPECT_THROW(tier->write_range(page, 100, 5000, other.data()), DiskError);
  control->fail(0);
  EXPECT_NO_THROW(tier->read(page, {back.data}).wait());
  EXPECT_TRUE(back.same(memory));
  tier->write_range(page, 100, 5000, other.data());
  tier->read(page, {back.data}).wait();
  std::memcpy(memory.data + 100, other.data(), other.size());
  EXPECT_TRUE(back.same(memory));
}

TEST_P(DiskTierTest, AnOperationThatCannotBeStartedIsADiskErrorToo) {
  Memory memory(3 << 20), back(3 << 20);
  memory.fill(1);
  auto page = store(memory);
  control->refuse_starts = EPERM;
  expect_parts(error_of(tier->read(page, {back.data})), {"cannot read", "Operation not permitted"});
  const auto other = tier->make_page(memory.bytes);
  expect_parts(error_of(tier->write(other, {memory.data})), {"cannot write", "Operation not permitted"});
  control->refuse_starts = 0;
  tier->read(page, {back.data}).wait();
  EXPECT_TRUE(back.same(memory));
}

TEST_P(DiskTierTest, AFailedLaneIsTheTicketsError) {
  testing::FailingTimeline broken(std::make_unique<WorkerTimeline>("broken"), 1);
  Memory memory(3 << 20);
  auto page = tier->make_page(memory.bytes);
  Ticket write = tier->write(page, {memory.data, &broken});
  EXPECT_THROW(write.wait(), std::runtime_error);
  page = store(memory);
  Ticket read = tier->read(page, {memory.data, &broken});
  EXPECT_THROW(read.wait(), std::runtime_error);
}

TEST_P(DiskTierTest, APageThatNobodyWantsAnyMoreIsNotWritten) {
  Memory memory(64 << 10);
  memory.fill(1);
  control->pause(true);
  auto kept = tier->make_page(memory.bytes);
  Ticket first = tier->write(kept, {memory.data});
  Ticket second = tier->write(tier->make_page(memory.bytes), {memory.data});
  control->pause(false);
  first.wait();
  second.wait();
  EXPECT_EQ(tier->stats().bytes_written, memory.bytes);
}

TEST_P(DiskTierTest, AReadDoesNotWaitForAllTheWritesBeforeIt) {
  Memory small(64 << 10), large(40 * tier->chunk_bytes());
  small.fill(1);
  large.fill(2);
  auto page = store(small);
  control->pause(true);
  auto other = tier->make_page(large.bytes);
  Ticket write = tier->write(other, {large.data});
  {
    std::unique_lock lock(control->mutex);  // waits until its first chunk is stuck
    control->changed.wait(lock, [&] { return control->started.size() >= 2; });
  }
  Ticket read = tier->read(page, {small.data});
  control->pause(false);
  read.wait();
  write.wait();
  EXPECT_EQ(control->order().substr(0, 4), "wwrw");  // the page, the large one's first chunk, the read, the rest
}

TEST_P(DiskTierTest, FinishesWhatWasStartedBeforeItEndsAndRemovesTheFile) {
  Memory memory(5 << 20);
  memory.fill(1);
  auto page = tier->make_page(memory.bytes);
  Ticket ticket = tier->write(page, {memory.data});
  tier.reset();
  EXPECT_TRUE(ticket.succeeded());
  EXPECT_EQ(host.used_bytes(), 0);
  page.reset();  // the last holder of the file
  EXPECT_TRUE(folder.names().empty());
}

TEST_P(DiskTierTest, GoesOnWhenTheDirectoryVanishes) {
  Memory memory(5 << 20), back(5 << 20);
  memory.fill(1);
  std::filesystem::remove_all(folder.path());
  auto page = store(memory);
  tier->read(page, {back.data}).wait();
  EXPECT_TRUE(back.same(memory));
  page.reset();
  EXPECT_NO_THROW(tier.reset());
}

TEST(DiskTierOptionsTest, ItsBuffersComeOutOfTheHostBudget) {
  TemporaryFolder folder;
  HostSlab small(DiskTier::kMinHostBytes), tiny(DiskTier::kMinHostBytes - 1), large(1 << 30);
  {
    DiskTier tier(folder.path(), small);
    EXPECT_EQ(small.used_bytes(), DiskTier::kDepth * tier.chunk_bytes());
    EXPECT_LE(small.used_bytes(), small.capacity_bytes() / 2);
    DiskTier roomy(folder.path(), large);
    EXPECT_EQ(roomy.chunk_bytes(), 1 << 20);
  }
  EXPECT_THROW(DiskTier(folder.path(), tiny), BadRequest);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace spillway
