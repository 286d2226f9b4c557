// Tests of pages that are discarded and made again.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"
#include "swap/pager/pager.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;

constexpr int64_t kBytes = 1 << 20;
const int64_t kCharge = DeviceMemory::charge_of(kBytes);

/// A recipe that makes the input's bytes plus one.
class PlusOne final : public ReplayRecipe {
 public:
  PlusOne(DeviceMemory& memory, const Page& input, const Page& made)
      : memory_(memory), inputs_{{input.id, input.write_epoch}}, write_epoch_(made.write_epoch) {}
  const std::vector<Input>& inputs() const override { return inputs_; }
  uint64_t write_epoch() const override { return write_epoch_; }
  Block* run(Pager& pager) override {
    if (meanwhile) meanwhile();
    if (fail) throw std::runtime_error("the operator failed");
    PageUse use{&pager.replayer().held_page(inputs_[0].page), false, kNextUseKept};
    pager.lease({&use, 1});
    Block* made = memory_.allocate(kBytes, Category::workspace);
    const auto* from = static_cast<const unsigned char*>(use.page->block->data);
    for (int64_t i = 0; i < kBytes; ++i)
      static_cast<unsigned char*>(made->data)[i] = static_cast<unsigned char>(from[i] + 1);
    pager.unlease({&use, 1});
    return made;
  }
  bool fail = false;
  std::function<void()> meanwhile;  ///< called when the recipe runs

 private:
  DeviceMemory& memory_;
  std::vector<Input> inputs_;
  const uint64_t write_epoch_;
};

/// A device that holds three pages.
struct PagerReplayTest : ::testing::Test {
  PagerReplayTest() { memory.set_reclaimer(&pager); }
  std::unique_ptr<Buffer> buffer(unsigned char fill) { return std::make_unique<Buffer>(memory, pager, kBytes, fill); }
  void touch(Buffer& buffer, bool write = false) {
    PageUse use{buffer.page(), write, kNextUseKept};
    pager.lease({&use, 1});
    pager.unlease({&use, 1});
  }
  bool discard(Buffer& made, Buffer& input) {
    return pager.replayer().discard(made.page()->id, std::make_unique<PlusOne>(memory, *input.page(), *made.page()));
  }

  Arena arena{1 << 28};
  Ledger ledger{"test", 3 * kCharge};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 28};
  WorkerTimeline out{"out"}, in{"in"};
  Pager pager{memory, host, out, in, /*small_bytes=*/0};
};

TEST_F(PagerReplayTest, ADiscardedPageCostsNoCopyAndIsMadeAgainWhenItIsLeased) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  EXPECT_FALSE(made->present());
  EXPECT_EQ(ledger.used_bytes(), kCharge);
  touch(*made);
  EXPECT_TRUE(made->holds(5));
  EXPECT_EQ(pager.stats().bytes_out + pager.stats().bytes_in, 0);
  EXPECT_EQ(pager.stats().replays, 1);
  EXPECT_EQ(input->page()->replay_refs, 0);
}

TEST_F(PagerReplayTest, ItIsMadeAgainBeforeWhatItReadsIsWritten) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  touch(*input, /*write=*/true);
  EXPECT_TRUE(made->holds(5));
}

TEST_F(PagerReplayTest, NothingIsDiscardedWhenTheInputWasWrittenSince) {
  auto input = buffer(4), made = buffer(5);
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  touch(*input, /*write=*/true);
  EXPECT_FALSE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  EXPECT_TRUE(made->present());
}

TEST_F(PagerReplayTest, NothingIsDiscardedThatWasWrittenSinceItsRecipe) {
  auto input = buffer(4), made = buffer(5);
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  touch(*made, /*write=*/true);
  made->fill(9);
  EXPECT_FALSE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  EXPECT_TRUE(made->holds(9));
}

TEST_F(PagerReplayTest, NothingIsDiscardedWhileTheInputIsLentForWriting) {
  auto input = buffer(4), made = buffer(5);
  PageUse lent{input->page(), /*write=*/true, kNextUseKept};
  pager.lease({&lent, 1});
  EXPECT_FALSE(discard(*made, *input));
  pager.unlease({&lent, 1});
  EXPECT_TRUE(discard(*made, *input));
}

TEST_F(PagerReplayTest, NothingIsDiscardedWhenTheInputWasLentForWritingWhenTheRecipeReadIt) {
  auto input = buffer(4), made = buffer(5);
  PageUse lent{input->page(), /*write=*/true, kNextUseKept};
  pager.lease({&lent, 1});
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  input->fill(9);
  pager.unlease({&lent, 1});
  EXPECT_FALSE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  EXPECT_TRUE(made->holds(5));
}

TEST_F(PagerReplayTest, NothingIsDiscardedWhoseInputIsAboutToBeWritten) {
  ledger.set_budget(kUnlimitedBytes);
  auto input = buffer(4), made = buffer(5), other = buffer(5);
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  bool discarded = false;
  recipe->meanwhile = [&] { discarded = discard(*other, *input); };
  ASSERT_TRUE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  touch(*input, /*write=*/true);  // before that, `made` is made again
  EXPECT_FALSE(discarded);
  EXPECT_TRUE(other->holds(5));
}

TEST_F(PagerReplayTest, BytesThatARecipeReadsOutliveTheirStorage) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  input.reset();
  EXPECT_EQ(ledger.used_bytes(), kCharge);
  {  // the input's bytes may even leave the device meanwhile
    auto a = buffer(1), b = buffer(2), c = buffer(3);
  }
  touch(*made);
  EXPECT_TRUE(made->holds(5));
  {  // needs the room of copies for which no thread waited
    PageUse use{made->page(), false, kNextUseKept};
    pager.lease({&use, 1});
    memory.release(memory.allocate(2 * kBytes, Category::workspace));
    pager.unlease({&use, 1});
  }
  EXPECT_EQ(ledger.used_bytes(), kCharge) << "the input went with its last reader";
  EXPECT_EQ(host.used_bytes(), 0);
}

TEST_F(PagerReplayTest, ADiscardedPageThatDiesLetsItsInputsGo) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  input.reset();
  made.reset();
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST_F(PagerReplayTest, ChainsOfRecipesRunFromTheFirst) {
  auto a = buffer(4), b = buffer(5), c = buffer(6);
  ASSERT_TRUE(discard(*c, *b));
  ASSERT_TRUE(discard(*b, *a));
  touch(*c);
  EXPECT_TRUE(b->holds(5));
  EXPECT_TRUE(c->holds(6));
}

TEST_F(PagerReplayTest, MakesRoomForAReplayLikeForAnOperator) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  auto x = buffer(1), y = buffer(2);  // the device is full
  touch(*made);                       // needs room for the input and for itself
  EXPECT_TRUE(made->holds(5));
  EXPECT_LE(ledger.peak_bytes(), 3 * kCharge);
}

TEST_F(PagerReplayTest, AFailedReplayIsThrownAndCanBeTriedAgain) {
  auto input = buffer(4), made = buffer(5);
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  PlusOne* failing = recipe.get();
  failing->fail = true;
  ASSERT_TRUE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  EXPECT_THROW(touch(*made), std::runtime_error);
  failing->fail = false;
  touch(*made);
  EXPECT_TRUE(made->holds(5));
}

TEST_F(PagerReplayTest, ClosingBringsDiscardedPagesHomeBeforeWhatTheyRead) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  input.reset();
  pager.unregister_resident();
  EXPECT_TRUE(made->holds(5));
  EXPECT_EQ(ledger.used_bytes(), kCharge);
  memory.set_reclaimer(nullptr);
}

TEST_F(PagerReplayTest, ClosingBringsChainsHomeInWhateverOrderTheyAreMet) {
  std::vector<std::unique_ptr<Buffer>> chain;
  ledger.set_budget(kUnlimitedBytes);
  for (unsigned char i = 0; i < 12; ++i) chain.push_back(buffer(i));
  for (size_t i = chain.size() - 1; i > 0; --i) ASSERT_TRUE(discard(*chain[i], *chain[i - 1]));
  pager.unregister_resident();
  for (unsigned char i = 0; i < 12; ++i) EXPECT_TRUE(chain[i]->holds(i));
  EXPECT_EQ(pager.paged_bytes(), 0);
}

TEST_F(PagerReplayTest, APageIsForgottenOnlyOnceNothingIsToBeMadeOfIt) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  pager.unregister_resident(*input->page());
  touch(*made);
  EXPECT_TRUE(made->holds(5));
}

TEST_F(PagerReplayTest, ClosingKeepsWhatAFailedReplayReads) {
  auto input = buffer(4), made = buffer(5);
  auto recipe = std::make_unique<PlusOne>(memory, *input->page(), *made->page());
  PlusOne* failing = recipe.get();
  failing->fail = true;
  ASSERT_TRUE(pager.replayer().discard(made->page()->id, std::move(recipe)));
  EXPECT_THROW(pager.unregister_resident(), std::runtime_error);
  failing->fail = false;
  pager.unregister_resident();
  EXPECT_TRUE(made->holds(5));
  EXPECT_TRUE(input->holds(4));
  EXPECT_EQ(pager.paged_bytes(), 0);
}

TEST_F(PagerReplayTest, PrefetchAndPageOutLeaveDiscardedPagesAlone) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  EXPECT_TRUE(pager.prefetcher().try_page_in(made->page()->id));
  pager.prefetcher().start_page_out(made->page()->id);
  pager.evict_all();
  EXPECT_FALSE(made->present());
  pager.replayer().replay(made->page()->id);
  EXPECT_TRUE(made->holds(5));
}

/// A user that retires. One of its pages cannot leave, because the host is full. Another page is to be made of that
/// one.
struct RetiringReplayTest : PagerReplayTest {
  RetiringReplayTest() {
    memory.set_reclaimer(&tight);
    for (Buffer* b : {&*input, &*made}) {
      PageUse use{b->page(), false, kNextUseKept};
      tight.lease({&use, 1}, user);
      tight.unlease({&use, 1});
    }
    tight.replayer().discard(made->page()->id, std::make_unique<PlusOne>(memory, *input->page(), *made->page()));
  }
  ~RetiringReplayTest() override {
    input.reset();
    made.reset();
    EXPECT_EQ(ledger.used_bytes(), 0);
    EXPECT_EQ(tight.paged_bytes(), 0);
    memory.set_reclaimer(&pager);
  }

  HostSlab full{1};
  Pager tight{memory, full, out, in, 0};
  const UserId user = tight.table().add_user();
  std::optional<Buffer> input{std::in_place, memory, tight, kBytes, static_cast<unsigned char>(4)};
  std::optional<Buffer> made{std::in_place, memory, tight, kBytes, static_cast<unsigned char>(5)};
};

TEST_F(RetiringReplayTest, WhatIsToBeMadeOfAPageThatCannotLeaveIsMadeBeforeItIsNoPageAnyMore) {
  tight.remove_user(user);
  EXPECT_TRUE(input->holds(4));
  EXPECT_TRUE(made->holds(5));
  EXPECT_EQ(tight.paged_bytes(), 0);  // no page moves either
}

TEST_F(RetiringReplayTest, WithoutRoomToMakeItThePageStaysOne) {
  std::vector<Block*> others;
  while (Block* block = memory.try_allocate(kBytes, Category::other)) others.push_back(block);
  tight.remove_user(user);
  for (Block* block : others) memory.free(block);
  EXPECT_TRUE(input->holds(4));
  EXPECT_FALSE(made->present());
  tight.replayer().replay(made->page()->id);
  EXPECT_TRUE(made->holds(5));
}

TEST_F(PagerReplayTest, APageThatIsReadAnewWhileItComesHomeIsNotForgotten) {
  testing::ManualTimeline late;
  Pager slow(memory, host, out, late, 0);
  memory.set_reclaimer(&slow);
  {
    Buffer input(memory, slow, kBytes, 4);
    slow.evict_all();
    Buffer made(memory, slow, kBytes, 5);
    std::thread coming([&] { slow.unregister_resident(*input.page()); });
    while (slow.stats().page_ins == 0) std::this_thread::yield();
    EXPECT_TRUE(
        slow.replayer().discard(made.page()->id, std::make_unique<PlusOne>(memory, *input.page(), *made.page())));
    late.finish_one();
    coming.join();
    EXPECT_TRUE(input.holds(4));
    slow.replayer().replay(made.page()->id);
    EXPECT_TRUE(made.holds(5));
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
  memory.set_reclaimer(&pager);
}

TEST_F(PagerReplayTest, APageComesHomeForGoodAfterWhatIsMadeOfIt) {
  auto input = buffer(4), made = buffer(5);
  ASSERT_TRUE(discard(*made, *input));
  pager.unregister_resident(*input->page());
  EXPECT_TRUE(made->holds(5));
  input->fill(9);  // the old bytes are not needed any more
  pager.evict_all();
  EXPECT_TRUE(input->holds(9));
  EXPECT_FALSE(made->present());
}

}  // namespace
}  // namespace spillway
