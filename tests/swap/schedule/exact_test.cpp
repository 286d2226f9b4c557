// Tests that compare schedules and bounds with an exact solver.
#include <gtest/gtest.h>

#include "swap/schedule/lower_bound.h"
#include "swap/schedule/schedule.h"
#include "tests/reference/exact_schedule.h"
#include "tests/support/random/trace.h"

namespace spillway {
using namespace swap;
namespace {

constexpr LinkRates kOneByteASecond{1, 1, 0};

struct Case {
  StepTrace trace;
  int64_t budget;
};

Case random_case(uint32_t seed) {
  testing::RandomTrace random(seed);
  Case c{random.make(), 0};
  const int64_t floor = c.trace.floor_bytes();
  c.budget = floor + random.below(static_cast<int32_t>(c.trace.unconstrained_peak_bytes() - floor) + 1);
  return c;
}

/// Checks distances from the optimum. Small steps cost few copies, and one copy that is hidden less is often a tenth of
/// the step. So all but a few schedules are within 5 % of the optimum, and the mean is far below.
TEST(ExactScheduleTest, SchedulesAreWithinFivePercentOfTheOptimum) {
  constexpr int kRounds = 300;
  double sum = 0;
  int over = 0;
  for (uint32_t seed = 0; seed < kRounds; ++seed) {
    const Case c = random_case(seed);
    const auto exact = testing::ExactSchedule(c.trace, c.budget).solve();
    ASSERT_TRUE(exact) << "seed " << seed;
    const Schedule schedule = make_schedule(c.trace, {.budget_bytes = c.budget, .rates = kOneByteASecond});
    const double ratio = schedule.predicted_seconds / static_cast<double>(*exact);
    EXPECT_GE(ratio, 1 - 1e-9) << "seed " << seed << ": faster than possible";
    EXPECT_LE(ratio, 1.15) << "seed " << seed;
    over += ratio > 1.05;
    sum += ratio;
  }
  EXPECT_LE(sum / kRounds, 1.003);
  EXPECT_LE(over, kRounds / 60);
}

TEST(ExactScheduleTest, TheBoundIsNeverAboveTheOptimum) {
  double sum = 0;
  constexpr int kRounds = 60;
  for (uint32_t seed = 1000; seed < 1000 + kRounds; ++seed) {
    const Case c = random_case(seed);
    const auto exact = testing::ExactSchedule(c.trace, c.budget).solve();
    ASSERT_TRUE(exact) << "seed " << seed;
    const double bound = bound_seconds(c.trace, c.budget, kOneByteASecond);
    EXPECT_LE(bound, static_cast<double>(*exact) + 1e-9) << "seed " << seed;
    EXPECT_GE(bound, c.trace.compute_seconds()) << "seed " << seed;
    sum += bound / static_cast<double>(*exact);
  }
  EXPECT_GE(sum / kRounds, 0.85);  // and the bound is not far below the optimum
}

TEST(ExactScheduleTest, ReplaysMakeStepsFasterThatCopiesCannot) {
  int faster = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Case c = random_case(seed);
    ScheduleInputs inputs{.budget_bytes = c.budget, .rates = {0.2, 0.2, 0}};
    const Schedule with = make_schedule(c.trace, inputs);
    inputs.replay = false;
    const Schedule without = make_schedule(c.trace, inputs);
    EXPECT_TRUE(without.replays.empty());
    faster += with.predicted_seconds < without.predicted_seconds;
  }
  EXPECT_GT(faster, 10);
}

}  // namespace
}  // namespace spillway
