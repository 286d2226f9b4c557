// Tests of the pager on a device whose operators and copies run asynchronously to the host. Every operator must find
// the bytes that the program's order requires. The tests must notice when any one edge between compute and copies is
// left out.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "swap/pager/pager.h"
#include "tests/support/disk.h"
#include "tests/support/stream_buffer.h"
#include "tests/support/streams.h"

namespace spillway {
using namespace swap;
namespace {

using testing::ComputeQueue;
using testing::Edges;
using testing::ManagedBlocks;
using testing::ManagedMemory;
using testing::StreamBlocks;
using testing::StreamBuffer;
using testing::StreamTimeline;

constexpr int64_t kBytes = 192 << 10;  // windows are a third, and an arena keeps only 64 KiB and more to itself
constexpr int64_t kBuffers = 6;
const int64_t kBudget = 3 * DeviceMemory::charge_of(kBytes) + 1000;

/// A recipe that makes the same bytes as another page's.
class CopyOf final : public ReplayRecipe {
 public:
  CopyOf(DeviceMemory& memory, ComputeQueue& compute, const Page& from, const Page& made)
      : memory_(memory), compute_(compute), inputs_{{from.id, from.write_epoch}}, write_epoch_(made.write_epoch) {}
  const std::vector<Input>& inputs() const override { return inputs_; }
  uint64_t write_epoch() const override { return write_epoch_; }
  Block* run(Pager& pager) override {
    PageUse use{&pager.replayer().held_page(inputs_[0].page), false, kNextUseKept};
    pager.lease({&use, 1});
    Block* made = memory_.allocate(kBytes, Category::workspace);
    (void)compute_.submit([to = made->data, from = use.page->block->data] { std::memcpy(to, from, kBytes); });
    pager.unlease({&use, 1});
    return made;
  }

 private:
  DeviceMemory& memory_;
  ComputeQueue& compute_;
  const std::vector<Input> inputs_;
  const uint64_t write_epoch_;
};

/// The memory of the pages: a device's own, with a disk below the host's or without, or managed memory.
enum class Memory : uint8_t { own, own_and_disk, managed };

/// A random program on a device with such memory.
class Program {
 public:
  Program(uint32_t seed, Edges out, Edges in, Memory memory = Memory::own)
      : random_(seed),
        host_(memory == Memory::own_and_disk ? DiskTier::kMinHostBytes + 2 * kBytes : int64_t{64} << 20),
        disk_(memory == Memory::own_and_disk ? std::make_unique<DiskTier>(folder_.path(), host_) : nullptr),
        compute_(std::make_shared<ComputeQueue>(seed + 1)),
        managed_(memory == Memory::managed ? std::make_shared<ManagedMemory>() : nullptr),
        blocks_(make_blocks()),
        memory_(*blocks_, ledger_),
        out_(compute_, seed + 2, out, managed_),
        in_(compute_, seed + 3, in, managed_),
        pager_(memory_, host_, out_, in_, /*small_bytes=*/0, disk_.get()) {
    memory_.set_reclaimer(&pager_);
  }
  ~Program() { memory_.set_reclaimer(nullptr); }

  /// Runs random operators. Returns the number of those that found wrong bytes, or bytes that were not on the device.
  int64_t run(int64_t operations) {
    for (int64_t i = 0; i < kBuffers; ++i) {
      buffers_.push_back(std::make_unique<StreamBuffer>(memory_, pager_, kBytes));
      operate({buffers_.back().get(), nullptr}, /*first_use=*/true);
    }
    for (int64_t i = 0; i < operations; ++i) step();
    return finish();
  }
  /// Runs operators that only use windows, over lanes that draw other edges meanwhile. Returns the number of those that
  /// found wrong bytes.
  int64_t run_windows(int64_t operations, Edges out, Edges in) {
    for (int64_t i = 0; i < kBuffers; ++i) {
      buffers_.push_back(std::make_unique<StreamBuffer>(memory_, pager_, kBytes));
      operate({buffers_.back().get(), nullptr}, /*first_use=*/true);
    }
    operate_windows(*buffers_[0]);  // makes room for one page
    compute_->position().wait();
    out_.draw(out);
    in_.draw(in);
    for (int64_t i = 0; i < operations; ++i) operate_windows(*buffers_[pick()]);
    compute_->position().wait();
    out_.draw({});
    in_.draw({});
    return finish();
  }
  const PagerStats stats() const { return pager_.stats(); }

 private:
  int64_t finish() {
    compute_->position().wait();
    const int64_t peak_bytes = managed_ ? managed_->peak_bytes() : 0;
    ledger_.set_budget(kUnlimitedBytes);
    pager_.unregister_resident();
    for (auto& buffer : buffers_) check(buffer->data(), buffer->version);
    compute_->position().wait();
    buffers_.clear();
    compute_->position().wait();
    if (peak_bytes > kBudget) ++wrong_;
    return wrong_;
  }
  std::unique_ptr<BlockSource> make_blocks() {
    if (managed_) return std::make_unique<ManagedBlocks>(arena_, compute_, managed_);
    return std::make_unique<StreamBlocks>(arena_, compute_);
  }
  size_t pick() { return random_() % buffers_.size(); }
  void step() {
    switch (random_() % 10) {
      case 0:
        return pager_.prefetcher().start_page_out(buffers_[pick()]->page()->id);
      case 1:
        return (void)pager_.prefetcher().try_page_in(buffers_[pick()]->page()->id);
      case 2: {
        auto& buffer = buffers_[pick()];
        buffer.reset();
        buffer = std::make_unique<StreamBuffer>(memory_, pager_, kBytes);
        return operate({buffer.get(), nullptr}, /*first_use=*/true);
      }
      case 3:
        return pager_.prefetcher().work_without_schedule();
      case 4:
        return managed_ ? (void)0 : operate_windows(*buffers_[pick()]);
      case 5:
        return discard(*buffers_[pick()], *buffers_[pick()]);
      default: {
        StreamBuffer* a = buffers_[pick()].get();
        StreamBuffer* b = buffers_[pick()].get();
        return operate({a, b == a ? nullptr : b}, /*first_use=*/false);
      }
    }
  }
  /// Reads both arguments, then perhaps writes the first.
  void operate(std::array<StreamBuffer*, 2> arguments, bool first_use) {
    const bool writes = first_use || random_() % 2 == 0;
    std::vector<PageUse> uses{{arguments[0]->page(), writes}};
    if (arguments[1]) uses.push_back({arguments[1]->page(), false});
    pager_.lease(uses);
    for (StreamBuffer* argument : arguments)
      if (argument && !first_use) check(argument->data(), argument->version);
    if (writes) {
      arguments[0]->version = static_cast<unsigned char>(random_() % 250);
      write(arguments[0]->data(), arguments[0]->version);
    }
    pager_.unlease(uses);
  }
  /// Reads the page in windows, and writes them back changed.
  void operate_windows(StreamBuffer& buffer) {
    PageUse use{buffer.page(), true};
    const bool resident = pager_.windows().pin(use);
    const auto version = static_cast<unsigned char>(random_() % 250);
    constexpr int64_t kRun = 16 << 10, kWindows = 3;
    for (int64_t w = 0; w < kWindows && !resident; ++w) {
      const WindowCopy window{.page_offset_bytes = w * kRun,
                              .run_bytes = kRun,
                              .dimensions = {{kBytes / kRun / kWindows, kWindows * kRun, kRun}}};
      Block* scratch = memory_.allocate(window.bytes(), Category::workspace);
      auto* data = static_cast<unsigned char*>(scratch->data);
      pager_.windows().read_window(*buffer.page(), window, data);
      check(data, buffer.version, window.bytes());
      write(data, version, window.bytes());
      pager_.windows().write_window(*buffer.page(), window, data);
      memory_.free(scratch);
    }
    if (resident) {
      check(buffer.data(), buffer.version);
      write(buffer.data(), version);
    }
    buffer.version = version;
    pager_.windows().unpin(use, resident);
  }
  /// Copies the buffer `from` to `made`, and discards `made`, which then is to be made again from `from`.
  void discard(StreamBuffer& made, StreamBuffer& from) {
    if (&made == &from) return;
    std::array uses{PageUse{made.page(), true}, PageUse{from.page(), false}};
    pager_.lease(uses);
    check(from.data(), from.version);
    (void)compute_->submit([this, to = made.data(), data = from.data()] {
      if (managed_) (void)managed_->use(to, kBytes);
      std::memcpy(to, data, kBytes);
    });
    made.version = from.version;
    pager_.unlease(uses);
    (void)pager_.replayer().discard(made.page()->id,
                                    std::make_unique<CopyOf>(memory_, *compute_, *from.page(), *made.page()));
  }
  void write(unsigned char* data, unsigned char version, int64_t bytes = kBytes) {
    (void)compute_->submit([this, data, version, bytes] {
      if (managed_) (void)managed_->use(data, bytes);
      std::memset(data, version, static_cast<size_t>(bytes));
    });
  }
  void check(unsigned char* data, unsigned char version, int64_t bytes = kBytes) {
    (void)compute_->submit([this, data, version, bytes] {
      if (managed_ && !managed_->use(data, bytes)) return (void)++wrong_;
      for (int64_t i = 0; i < bytes; i += 509)
        if (data[i] != version) return (void)++wrong_;
    });
  }

  std::mt19937 random_;
  Arena arena_{int64_t{64} << 20};
  const testing::TemporaryFolder folder_;
  HostSlab host_;
  const std::unique_ptr<DiskTier> disk_;
  const std::shared_ptr<ComputeQueue> compute_;
  const std::shared_ptr<ManagedMemory> managed_;
  const std::unique_ptr<BlockSource> blocks_;
  Ledger ledger_{"streams", kBudget};
  DeviceMemory memory_;
  StreamTimeline out_, in_;
  Pager pager_;
  std::vector<std::unique_ptr<StreamBuffer>> buffers_;
  std::atomic<int64_t> wrong_ = 0;
};

int64_t wrong_in(uint32_t programs, Edges out, Edges in, Memory memory = Memory::own) {
  int64_t wrong = 0;
  for (uint32_t seed = 1; seed <= programs; ++seed) wrong += Program(seed * 10, out, in, memory).run(200);
  return wrong;
}

TEST(StreamOrderTest, OperatorsFindTheBytesThatTheProgramsOrderSays) {
  EXPECT_EQ(wrong_in(20, {}, {}), 0);
}

TEST(StreamOrderTest, TheSameWithAFullHostAndADiskBelowIt) {
  EXPECT_EQ(wrong_in(10, {}, {}, Memory::own_and_disk), 0);
}

TEST(StreamOrderTest, PagesMoveWithoutTheHostWaiting) {
  Program program(1, {}, {});
  EXPECT_EQ(program.run(300), 0);
  EXPECT_GT(program.stats().page_outs, 20);
  EXPECT_GT(program.stats().page_ins, 20);
  EXPECT_GT(program.stats().discards, 5);
  EXPECT_GT(program.stats().replays, 5);
}

TEST(StreamOrderTest, APageOutThatDoesNotWaitForItsWriterIsNoticed) {
  EXPECT_GT(wrong_in(20, {.copy_waits_for_compute = false}, {}), 0);
}

TEST(StreamOrderTest, APageInThatDoesNotWaitForItsBlocksLastUserIsNoticed) {
  EXPECT_GT(wrong_in(20, {}, {.copy_waits_for_compute = false}), 0);
}

TEST(StreamOrderTest, AnOperatorThatDoesNotWaitForItsPageInIsNoticed) {
  EXPECT_GT(wrong_in(20, {}, {.compute_waits_for_copy = false}), 0);
}

TEST(StreamOrderTest, ABlockThatIsFreedBeforeItsPageOutIsNoticed) {
  EXPECT_GT(wrong_in(20, {.compute_waits_for_copy = false}, {}), 0);
}

int64_t wrong_in_windows(Edges out, Edges in) {
  int64_t wrong = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) wrong += Program(seed * 10, {}, {}).run_windows(60, out, in);
  return wrong;
}

TEST(StreamOrderTest, OperatorsFindTheirWindowsOfAbsentPagesAndLeaveThemThere) {
  EXPECT_EQ(wrong_in_windows({}, {}), 0);
  Program program(1, {}, {});
  const int64_t before = program.stats().bytes_in;
  EXPECT_EQ(program.run_windows(60, {}, {}), 0);
  EXPECT_GT(program.stats().bytes_in, before + 20 * kBytes);
}

TEST(StreamOrderTest, AnOperatorThatDoesNotWaitForItsWindowIsNoticed) {
  EXPECT_GT(wrong_in_windows({}, {.compute_waits_for_copy = false}), 0);
}

TEST(StreamOrderTest, AWindowThatDoesNotWaitForItsMemorysLastUserIsNoticed) {
  EXPECT_GT(wrong_in_windows({}, {.copy_waits_for_compute = false}), 0);
}

TEST(StreamOrderTest, AWindowThatIsWrittenBackBeforeItIsMadeIsNoticed) {
  EXPECT_GT(wrong_in_windows({.copy_waits_for_compute = false}, {}), 0);
}

TEST(StreamOrderTest, AWindowThatIsFreedOrReadAgainBeforeItIsWrittenBackIsNoticed) {
  EXPECT_GT(wrong_in_windows({.compute_waits_for_copy = false}, {}), 0);
}

TEST(StreamOrderTest, ManagedMemoryIsOnTheDeviceWhereOperatorsUseItAndNeverMoreOfItThanTheBudget) {
  EXPECT_EQ(wrong_in(20, {}, {}, Memory::managed), 0);
  Program program(1, {}, {}, Memory::managed);
  EXPECT_EQ(program.run(300), 0);
  EXPECT_GT(program.stats().page_outs, 20);
  EXPECT_GT(program.stats().page_ins, 20);
  EXPECT_EQ(program.stats().clean_drops, 0);
  EXPECT_EQ(program.stats().parked_bytes, 0);
  EXPECT_GE(program.stats().parked_peak_bytes, 2 * kBytes);
}

TEST(StreamOrderTest, ManagedMemoryThatLeavesUnderAnOperatorIsNoticed) {
  EXPECT_GT(wrong_in(20, {.copy_waits_for_compute = false}, {}, Memory::managed), 0);
}

TEST(StreamOrderTest, ManagedMemoryThatComesBackBeforeItHasLeftIsNoticed) {
  EXPECT_GT(wrong_in(20, {}, {.copy_waits_for_compute = false}, Memory::managed), 0);
}

TEST(StreamOrderTest, AnOperatorThatDoesNotWaitForManagedMemoryToComeBackIsNoticed) {
  EXPECT_GT(wrong_in(20, {}, {.compute_waits_for_copy = false}, Memory::managed), 0);
}

TEST(StreamOrderTest, ManagedMemoryWhoseRoomIsUsedBeforeItHasLeftIsNoticed) {
  EXPECT_GT(wrong_in(20, {.compute_waits_for_copy = false}, {}, Memory::managed), 0);
}

}  // namespace
}  // namespace spillway
