#include "swap/schedule/step_times.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "swap/conductor/conductor.h"
#include "swap/schedule/lower_bound.h"
#include "swap/schedule/schedule.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"
#include "tests/support/random/trace.h"

namespace spillway {
using namespace swap;
namespace {

/// Returns a step of operators that take these seconds, half of them before the kernel.
StepTrace step_of(const std::vector<double>& seconds, double tail = 0) {
  StepTrace trace;
  for (double s : seconds) {
    OperatorRecord& op = trace.operators.emplace_back();
    op.seconds = op.host_seconds = s / 2;
  }
  trace.tail_seconds = tail;
  return trace;
}

TEST(StepTimesTest, TypicalStepsAreTheLatestButForTheFastestAndTheSlowest) {
  StepTimes times;
  StepTrace trace = step_of({0, 0});
  auto note = [&](double first, double second, double tail) {
    times.note(step_of({first, second}, tail), {});
    times.apply_to(trace);
    return trace.compute_seconds();
  };
  EXPECT_EQ(note(8, 4, 1), 13);
  EXPECT_EQ(note(50, 4, 1), 13);  // the faster of two
  EXPECT_EQ(note(2, 6, 2), 13);   // the middle one of three
  EXPECT_EQ(note(10, 4, 1), 14);  // 13 and 15
  EXPECT_EQ(note(9, 2, 6), 15);   // 13, 15 and 17
  EXPECT_EQ(trace.operators[0].seconds, (8 + 10 + 9) / 6.0);
  EXPECT_EQ(trace.operators[0].host_seconds, trace.operators[0].seconds);
  EXPECT_DOUBLE_EQ(note(9, 2, 6), (15 + 17 + 17) / 3.0);  // the first is forgotten
}

TEST(StepTimesTest, TheShortestTimesOfAllStepsStay) {
  StepTimes times;
  times.note(step_of({1, 8}, 3), {});
  times.forget_latest();
  for (int i = 0; i < 10; ++i) times.note(step_of({4, 6}, 5), {});
  StepTrace trace = step_of({0, 0});
  times.apply_to(trace);
  EXPECT_EQ(trace.compute_seconds(), 15);
  EXPECT_EQ(trace.shortest_seconds(), 1 + 6 + 3);
  EXPECT_EQ(trace.operators[0].excess_seconds, 3);
  EXPECT_EQ(bound_seconds(trace, kUnlimitedBytes, {}), 10);
}

TEST(StepTimesTest, RatesAreThoseOfTheLatestStepsTogether) {
  StepTimes times;
  const StepTrace step = step_of({1});
  times.note(step, {.out = {100 << 20, 1}, .in = {10, 1}, .from_disk = {3 << 20, 2}});
  times.note(step, {.out = {200 << 20, 5}});
  const LinkRates rates = times.rates({.out_bytes_per_second = 1, .in_bytes_per_second = 7});
  EXPECT_EQ(rates.out_bytes_per_second, 300 * (1 << 20) / 6.0);
  EXPECT_EQ(rates.in_bytes_per_second, 7) << "ten bytes say nothing";
  EXPECT_EQ(rates.from_disk_bytes_per_second, 1.5 * (1 << 20));
  for (size_t i = 0; i < StepTimes::kLatest; ++i) times.note(step, {.out = {60 << 20, 1}});
  EXPECT_EQ(times.rates({}).out_bytes_per_second, 60 << 20);
}

TEST(PredictionTest, FollowsOtherTimesAndLeavesTheScheduleAsItIs) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    testing::RandomTrace random(seed);
    StepTrace trace = random.make();
    const ScheduleInputs inputs{.budget_bytes = trace.floor_bytes() + random.below(4), .rates = {1, 1, 0}};
    Schedule schedule = make_schedule(trace, inputs);
    const Schedule first = schedule;
    predict_again(schedule, trace, inputs);
    EXPECT_EQ(schedule.predicted_seconds, first.predicted_seconds) << "seed " << seed;
    EXPECT_EQ(schedule.bound_seconds, first.bound_seconds);
    // Typical steps became slower, while the shortest times stayed.
    for (OperatorRecord& op : trace.operators) op.seconds += 100, op.excess_seconds += 100;
    predict_again(schedule, trace, inputs);
    EXPECT_GE(schedule.predicted_seconds, 100 * static_cast<double>(trace.operators.size()));
    EXPECT_EQ(schedule.bound_seconds, first.bound_seconds);
    EXPECT_EQ(schedule.actions.page_ins.size(), first.actions.page_ins.size());
  }
}

/// A conductor that runs steps of two operators on one page, whose kernels report `seconds` each.
struct PredictedStepsTest : ::testing::Test {
  PredictedStepsTest() { memory.set_reclaimer(&pager); }
  /// Runs a step, which has times where it must have them, or where the conductor wants them.
  double step(double seconds, bool must_have_times = true) {
    static const int identity = 0;
    conductor.begin_step("step");
    const bool is_timed = must_have_times || conductor.wants_times();
    timed_steps += is_timed;
    if (!is_timed) seconds = 1e9;  // which nobody may believe
    for (int i = 0; i < 2; ++i) {
      std::vector<PageUse> uses{{buffer.page(), true, kNextUseKept}};
      pager.lease(uses, conductor.user());
      conductor.begin_operator({&identity, "test::operator", false}, uses, {}, {});
      conductor.end_operator(seconds, 0, {});
      pager.unlease(uses);
      conductor.issue_copies();
    }
    conductor.end_step({}, is_timed);
    return conductor.schedule("step")->predicted_seconds;
  }
  double bound() const { return conductor.schedule("step")->bound_seconds; }

  Arena arena{1 << 24};
  Ledger ledger{"test", 1 << 22};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 22};
  testing::SameThreadTimeline out, in;
  Pager pager{memory, host, out, in, 0};
  testing::Buffer buffer{memory, pager, 1 << 16, 1};
  Conductor conductor{pager, {.budget_bytes = 1 << 22}, true, pager.table().add_user()};
  int64_t timed_steps = 0;
};

TEST_F(PredictedStepsTest, LaterStepsMoveThePredictionButOnlyFasterOnesTheBound) {
  // The machine's time between operators is small beside these, although they are fast.
  EXPECT_GE(step(900), 1800);
  EXPECT_LT(step(100), 300) << "the first ran on demand";
  for (int i = 0; i < 3; ++i) step(100);
  EXPECT_LT(bound(), 300);
  for (int i = 0; i < 30; ++i) step(200);
  EXPECT_GE(step(200), 400);
  EXPECT_LT(bound(), 300);
  for (int i = 0; i < 30; ++i) step(50);
  EXPECT_LT(step(50), 200);
  EXPECT_LT(bound(), 150);
  EXPECT_EQ(conductor.deviations(), 0);
}

TEST_F(PredictedStepsTest, OnceThePlanIsSettledOneStepInAFewIsTimedAndTheOthersChangeNothing) {
  for (int i = 0; i < 8; ++i) step(100, /*must_have_times=*/false);
  EXPECT_EQ(timed_steps, 8) << "a plan is made of the first ones, and its prediction of the next";
  for (int i = 0; i < 80; ++i) {
    const double predicted = step(100, /*must_have_times=*/false);
    EXPECT_GE(predicted, 200);
    EXPECT_LT(predicted, 300);
    EXPECT_LT(bound(), 300);
  }
  EXPECT_EQ(timed_steps, 8 + 80 / StepPlanner::kSteadySteps);
  for (int i = 0; i < 50; ++i) step(500, /*must_have_times=*/false);
  EXPECT_GE(step(500), 1000) << "it follows other times all the same";
}

}  // namespace
}  // namespace spillway
