#include "pipe/channels.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "pipe/schedules.h"
#include "tests/support/refusal.h"

namespace spillway::pipe {
namespace {

TEST(ChannelsTest, AnEdgeBetweenRanksHasAChannelEachWay) {
  const auto all = channels(one_forward_one_backward(3, 4));
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(describe(all[0]), "activations from stage 0 to stage 1");
  EXPECT_EQ(describe(all[1]), "errors from stage 1 to stage 0");
  EXPECT_EQ(all[1].from_rank, 1);
  EXPECT_EQ(all[1].to_rank, 0);
}

TEST(ChannelsTest, StagesOfOneRankNeedNone) {
  EXPECT_TRUE(channels(interleaved(1, 2, 3)).empty());
  // A U-Net: rank r has level r on the way down and on the way up. The skips and the bottom stay where they are.
  StepProgram u_net = gpipe(6, 2);
  u_net.graph.rank_of = {{0, 1, 2, 2, 1, 0}};
  u_net.graph.edges.insert(u_net.graph.edges.end(), {{0, 5}, {1, 4}});
  EXPECT_EQ(channels(u_net).size(), 8u);
}

TEST(ChannelsTest, EachCopyHasItsOwn) {
  const auto all = channels(chimera(4, 4));
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(all[6].copy, 1);
  EXPECT_EQ(all[6].from_rank, 3);
}

TEST(ChannelsTest, ASlotAtEachEndIsEnoughForOneForwardOneBackward) {
  for (int ranks : {2, 3, 4, 8})
    for (int micro_batches : {1, 2, 5, 8, 20}) {
      EXPECT_EQ(slots_needed(gpipe(ranks, micro_batches)), 1) << ranks << " " << micro_batches;
      EXPECT_EQ(slots_needed(one_forward_one_backward(ranks, micro_batches)), 1) << ranks << " " << micro_batches;
    }
}

TEST(ChannelsTest, ARankThatTakesMessagesLateNeedsMoreSlots) {
  // Rank 0 sends all activations before it takes a gradient; rank 1 sends its gradients at once.
  StepProgram program{.graph = chain(2, 2), .copy_of = std::vector<int>(12, 0), .items = {{}, {}}};
  for (int m = 0; m < 12; ++m) program.items[0].push_back({Work::forward, 0, m});
  for (int m = 0; m < 12; ++m) program.items[0].push_back({Work::backward, 0, m});
  for (int m = 0; m < 12; ++m) {
    program.items[1].push_back({Work::forward, 1, m});
    program.items[1].push_back({Work::backward, 1, m});
  }
  for (auto& items : program.items) items.push_back({Work::update});
  check(program);
  // 12 − 2s activations are read once 2s gradients are kept, and rank 1 is about to send the next: 4s + 1 ≥ 12.
  EXPECT_EQ(slots_needed(program), 3);
}

TEST(ChannelsTest, AProgramMayLackBackwards) {
  StepProgram program = one_forward_one_backward(4, 6);
  for (auto& items : program.items) std::erase_if(items, [](const Item& item) { return item.work != Work::forward; });
  EXPECT_EQ(slots_needed(program), 1);
}

TEST(ChannelsTest, ProgramsThatNoSlotsHelpAreRefused) {
  // Each rank begins with what the other one's second item makes.
  StepProgram program{.graph = chain(2, 2), .copy_of = {0}, .items = {{}, {}}};
  program.items[0] = {{Work::backward, 0, 0}, {Work::forward, 0, 0}};
  program.items[1] = {{Work::forward, 1, 0}, {Work::backward, 1, 0}};
  testing::expect_refusal([&] { slots_needed(program); }, {"ranks wait for each other for ever"});
}

}  // namespace
}  // namespace spillway::pipe
