#include "swap/schedule/replay.h"

#include <gtest/gtest.h>

namespace spillway {
using namespace swap;
namespace {

/// Returns a step in which conv makes slot 0, norm makes slot 1 of it, relu writes 1 and loss reads 1. Norm's backward
/// reads 0 and 1.
StepTrace conv_norm_relu() {
  StepTrace trace;
  trace.operators.resize(5);
  trace.operators[0] = {.seconds = 9, .own_bytes = 10, .births = {0}};
  trace.operators[1] = {
      .seconds = 2, .own_bytes = 10, .leased_bytes = 10, .replayable = true, .touched = {0}, .births = {1}};
  trace.operators[2] = {.seconds = 1, .leased_bytes = 10, .replayable = true, .touched = {1}};
  trace.operators[3] = {.seconds = 9, .own_bytes = 30, .leased_bytes = 10, .touched = {1}};
  trace.operators[4] = {.seconds = 3, .leased_bytes = 20, .touched = {1, 0}};
  trace.slots.resize(2);
  trace.slots[0] = {.bytes = 10, .birth = 0, .born_as_output = true, .death = 4, .uses = {0, 1, 4}, .writes = {0}};
  trace.slots[1] = {
      .bytes = 10, .birth = 1, .born_as_output = true, .death = 4, .uses = {1, 2, 3, 4}, .writes = {1, 2}};
  return trace;
}

TEST(ReplaysTest, AProducerAndWhatWroteInPlaceAfterItRunAgainTogether) {
  const Replay replay = replay_before(conv_norm_relu(), 1, 4);
  EXPECT_EQ(replay.operators, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(replay.discard_after, 3);
}

TEST(ReplaysTest, NothingIsReplayedFromWhatIsCostlyWrittenOrGone) {
  StepTrace trace = conv_norm_relu();
  EXPECT_TRUE(replay_before(trace, 0, 4).operators.empty()) << "a convolution";
  trace.slots[0].writes = {0, 3};
  EXPECT_TRUE(replay_before(trace, 1, 4).operators.empty()) << "the input was written since";
  trace.slots[0].writes = {0};
  trace.slots[0].death = 3;
  EXPECT_TRUE(replay_before(trace, 1, 4).operators.empty()) << "the input is gone";
  trace.slots[0].death = 4;
  trace.operators[2].replayable = false;
  EXPECT_TRUE(replay_before(trace, 1, 4).operators.empty()) << "something else wrote it";
}

TEST(ReplaysTest, AReplayBecomesAnOperatorThatNeedsTheInputs) {
  const StepTrace trace = conv_norm_relu();
  const Replay replay = replay_before(trace, 1, 4);
  const ReplayedTrace replayed = with_replays(trace, {&replay, 1});
  ASSERT_EQ(replayed.trace.operators.size(), 6u);
  EXPECT_EQ(replayed.original_operator, (std::vector<int32_t>{0, 1, 2, 3, -1, 4}));
  const OperatorRecord& again = replayed.trace.operators[4];
  EXPECT_EQ(again.touched, std::vector<int32_t>{0});
  EXPECT_EQ(again.births, std::vector<int32_t>{2});
  EXPECT_EQ(again.seconds, 3);
  EXPECT_EQ(replayed.trace.slots[1].death, 3);
  EXPECT_EQ(replayed.trace.slots[2].uses, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(replayed.trace.slots[0].uses, (std::vector<int32_t>{0, 1, 4, 5}));
  EXPECT_EQ(replayed.trace.operators[5].touched, (std::vector<int32_t>{2, 0}));
  EXPECT_LT(live_bytes(replayed.trace)[3], live_bytes(trace)[3] + 1);
  EXPECT_EQ(replayed.original_slot[2], 1);
}

TEST(ReplaysTest, WhatAReplayReadsIsNotAwayAtThatTime) {
  StepTrace trace = conv_norm_relu();
  trace.operators[0].replayable = true;  // now 0 can be made again as well …
  const Replay second = replay_before(trace, 1, 4), first = replay_before(trace, 0, 4);
  ASSERT_FALSE(first.operators.empty());
  EXPECT_FALSE(compatible(trace, second, {&first, 1}));  // … but not while 1 is made of it
  EXPECT_FALSE(compatible(trace, first, {&second, 1}));
}

}  // namespace
}  // namespace spillway
