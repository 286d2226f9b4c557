// Tests of messages beside the operators of a simulated step, and of the host memory that a schedule takes.
#include <gtest/gtest.h>

#include <vector>

#include "swap/schedule/host_overflow.h"
#include "swap/schedule/replay.h"
#include "swap/schedule/schedule.h"

namespace spillway::swap {
namespace {

StepTrace trace_of(const std::vector<double>& seconds) {
  StepTrace trace;
  for (double time : seconds) trace.operators.push_back({.name = "op", .seconds = time});
  return trace;
}

double seconds_of(const StepTrace& trace) {
  return simulate(trace, {}).seconds;
}

TEST(MessagesTest, AMessageHidesBehindTheOperatorsUntilItIsNeeded) {
  StepTrace trace = trace_of({1, 1, 1});
  trace.messages = {{.after = 0, .before = 2, .seconds = 1}};
  EXPECT_DOUBLE_EQ(seconds_of(trace), 3);
  trace.messages = {{.after = 0, .before = 2, .seconds = 1.5}};
  const Simulated step = simulate(trace, {});
  EXPECT_DOUBLE_EQ(step.seconds, 3.5);
  EXPECT_DOUBLE_EQ(step.message_seconds, 0.5);
  EXPECT_EQ(step.ends, (std::vector<double>{1, 2, 3.5}));
}

TEST(MessagesTest, MessagesFollowEachOtherOnTheLinks) {
  StepTrace trace = trace_of({1, 1});
  trace.messages = {{.after = 0, .before = 2, .seconds = 2}, {.after = 0, .before = 2, .seconds = 2}};
  EXPECT_DOUBLE_EQ(seconds_of(trace), 5);  // both leave at 1, one after the other, and the step waits at its end
}

TEST(MessagesTest, AMessageBeforeTheFirstOperatorStartsWithTheStep) {
  StepTrace trace = trace_of({1, 1});
  trace.messages = {{.after = kBeforeStep, .before = 1, .seconds = 1.25}};
  EXPECT_DOUBLE_EQ(seconds_of(trace), 2.25);
}

TEST(MessagesTest, AMessageOnSharedCoresTakesItsTimeFromCompute) {
  const ScheduleInputs inputs{.rates = {.message_slowdown = 1}};
  StepTrace trace = trace_of({1, 1, 1});
  trace.messages = {{.after = 0, .before = 3, .seconds = 0.5}};
  EXPECT_DOUBLE_EQ(make_schedule(trace, inputs).predicted_seconds, 3.5);
  trace.messages = {{.after = 0, .before = 1, .seconds = 2}};  // nothing computes beside it
  EXPECT_DOUBLE_EQ(make_schedule(trace, inputs).predicted_seconds, 5);
}

TEST(MessagesTest, AThreadTakesTimeFromItsRankWhereCoresAreFew) {
  EXPECT_EQ(loss_beside_a_thread(1, 2, 4), 0);
  EXPECT_EQ(loss_beside_a_thread(1, 4, 4), 0.25);
  EXPECT_EQ(loss_beside_a_thread(2, 1, 4), 0);
  EXPECT_EQ(loss_beside_a_thread(4, 1, 4), 1);
  EXPECT_EQ(loss_beside_a_thread(1, 16, 4), 0.25);
}

TEST(MessagesTest, AReplayInFrontOfAnOperatorMovesItsMessages) {
  StepTrace trace = trace_of({1, 1, 1});
  trace.slots.push_back({.bytes = 64, .birth = 0, .born_as_output = true, .death = 2, .uses = {0, 2}, .writes = {0}});
  trace.operators[0].births = {0};
  trace.operators[0].replayable = true;
  trace.operators[2].touched = {0};
  trace.messages = {{.after = 0, .before = 2, .seconds = 1}, {.after = 1, .before = 3, .seconds = 1}};
  const Replay replay = replay_before(trace, 0, 2);
  ASSERT_FALSE(replay.operators.empty());
  const StepTrace replayed = with_replays(trace, std::vector{replay}).trace;
  ASSERT_EQ(replayed.messages.size(), 2);
  EXPECT_EQ(replayed.messages[0].before, 3);  // the operator itself, behind the replay
  EXPECT_EQ(replayed.messages[1].after, 1);
  EXPECT_EQ(replayed.messages[1].before, 4);  // the step's end
}

TEST(MessagesTest, AScheduleTellsItsWaits) {
  StepTrace trace = trace_of({1, 1});
  trace.messages = {{.after = 0, .before = 2, .seconds = 3}};
  const Schedule schedule = make_schedule(trace, {});
  EXPECT_DOUBLE_EQ(schedule.predicted_seconds, 4);
  EXPECT_DOUBLE_EQ(schedule.message_seconds, 2);
  EXPECT_EQ(schedule.ends, (std::vector<double>{1, 2}));
}

TEST(HostPeakTest, ACopyStaysUntilItsSlotIsWrittenOrEnds) {
  StepTrace trace = trace_of({1, 1, 1, 1});
  trace.slots = {{.bytes = 100, .birth = 0, .death = 2, .uses = {0, 2}, .writes = {0}},
                 {.bytes = 10, .birth = kBeforeStep, .uses = {3}, .writes = {}}};
  // The first slot leaves before operator 1 and ends with operator 2; the second one leaves before operator 3.
  EXPECT_EQ(host_peak_bytes(trace, {{.slot = 0, .at = 1, .back_at = 2, .copied = true}}), 100);
  // The second one is never written, so its copy is still there when the first one leaves in the next step.
  EXPECT_EQ(host_peak_bytes(trace, {{.slot = 0, .at = 1, .back_at = 2, .copied = true},
                                    {.slot = 1, .at = 0, .back_at = 3, .copied = true}}),
            110);
  EXPECT_EQ(host_peak_bytes(trace, {}), 0);
}

}  // namespace
}  // namespace spillway::swap
