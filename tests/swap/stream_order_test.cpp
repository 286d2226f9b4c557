// The pager on a device whose operators and copies run behind the host's back: every operator must find the bytes that
// the program's order says, and leaving out any one edge between compute and copies must be noticed.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "swap/pager.h"
#include "tests/support/disk.h"
#include "tests/support/streams.h"

namespace spillway {
namespace {

using testing::ComputeQueue;
using testing::Edges;
using testing::ManagedBlocks;
using testing::ManagedMemory;
using testing::StreamBlocks;
using testing::StreamTimeline;

constexpr int64_t kBytes = 96 << 10;
constexpr int64_t kBuffers = 6;
const int64_t kBudget = 3 * DeviceMemory::charge_of(kBytes) + 1000;

/// What a page belongs to. The host knows where it is; only operators see what it holds.
class StreamBuffer {
 public:
  StreamBuffer(DeviceMemory& memory, Pager& pager) : state_(std::make_shared<State>(memory, pager)) {
    state_->block = memory.allocate(kBytes, Category::other);
    state_->page = pager.add(state_->block, kBytes, std::make_unique<Owner>(state_));
  }
  Page* page() const { return state_->page; }
  unsigned char* data() const { return static_cast<unsigned char*>(state_->block->data); }
  unsigned char version = 0;

 private:
  struct State {
    State(DeviceMemory& memory, Pager& pager) : memory(memory), pager(pager) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (block)
        memory.release(block);
      else
        pager.absent_owner_died(page);
    }
    DeviceMemory& memory;
    Pager& pager;
    Block* block = nullptr;
    Page* page = nullptr;
  };
  class Owner final : public PageOwner {
   public:
    explicit Owner(const std::shared_ptr<State>& state) : state_(state) {}
    std::shared_ptr<void> keep_alive() override { return state_.lock(); }
    void vacate(Page&) override { state_.lock()->block = nullptr; }
    void occupy(Block* block) override { state_.lock()->block = block; }

   private:
    std::weak_ptr<State> state_;
  };
  std::shared_ptr<State> state_;
};

/// What pages are: a device's own memory, with a disk below the host's or without, or managed memory.
enum class Memory : uint8_t { own, own_and_disk, managed };

/// A random program on such a device.
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

  /// Operators that did not find what they should have, or not on the device.
  int64_t run(int64_t operations) {
    for (int64_t i = 0; i < kBuffers; ++i) {
      buffers_.push_back(std::make_unique<StreamBuffer>(memory_, pager_));
      operate({buffers_.back().get(), nullptr}, /*first_use=*/true);
    }
    for (int64_t i = 0; i < operations; ++i) step();
    compute_->position().wait();
    const int64_t peak_bytes = managed_ ? managed_->peak_bytes() : 0;
    ledger_.set_budget(kUnlimitedBytes);
    pager_.bring_home();
    for (auto& buffer : buffers_) check(buffer->data(), buffer->version);
    compute_->position().wait();
    buffers_.clear();
    compute_->position().wait();
    if (peak_bytes > kBudget) ++wrong_;
    return wrong_;
  }
  const PagerStats stats() const { return pager_.stats(); }

 private:
  std::unique_ptr<BlockSource> make_blocks() {
    if (managed_) return std::make_unique<ManagedBlocks>(arena_, compute_, managed_);
    return std::make_unique<StreamBlocks>(arena_, compute_);
  }
  size_t pick() { return random_() % buffers_.size(); }
  void step() {
    switch (random_() % 8) {
      case 0:
        return pager_.start_page_out(buffers_[pick()]->page()->id);
      case 1:
        return (void)pager_.try_prefetch(buffers_[pick()]->page()->id);
      case 2: {
        auto& buffer = buffers_[pick()];
        buffer.reset();
        buffer = std::make_unique<StreamBuffer>(memory_, pager_);
        return operate({buffer.get(), nullptr}, /*first_use=*/true);
      }
      case 3:
        return pager_.work_ahead_of_demand();
      default: {
        StreamBuffer* a = buffers_[pick()].get();
        StreamBuffer* b = buffers_[pick()].get();
        return operate({a, b == a ? nullptr : b}, /*first_use=*/false);
      }
    }
  }
  /// Reads both, then perhaps writes the first.
  void operate(std::array<StreamBuffer*, 2> arguments, bool first_use) {
    const bool writes = first_use || random_() % 2 == 0;
    std::vector<PageUse> uses{{arguments[0]->page(), writes}};
    if (arguments[1]) uses.push_back({arguments[1]->page(), false});
    pager_.lease(uses);
    for (StreamBuffer* argument : arguments)
      if (argument && !first_use) check(argument->data(), argument->version);
    if (writes) {
      arguments[0]->version = static_cast<unsigned char>(random_() % 250);
      (void)compute_->submit([this, data = arguments[0]->data(), version = arguments[0]->version] {
        if (managed_) (void)managed_->use(data, kBytes);
        std::memset(data, version, static_cast<size_t>(kBytes));
      });
    }
    pager_.unlease(uses);
  }
  void check(unsigned char* data, unsigned char version) {
    (void)compute_->submit([this, data, version] {
      if (managed_ && !managed_->use(data, kBytes)) return (void)++wrong_;
      for (int64_t i = 0; i < kBytes; i += 509)
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
