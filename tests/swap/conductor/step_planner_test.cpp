#include "swap/conductor/step_planner.h"

#include <gtest/gtest.h>

#include "tests/support/copies.h"
#include "tests/support/random/trace.h"

namespace spillway {
using namespace swap;
namespace {

/// A planner of steps with random traces, under budgets in which the length of the search matters.
struct StepPlannerTest : ::testing::Test {
  /// Returns the predicted time of the schedule that so many candidates find.
  double found_by(int32_t candidates, const StepTrace& trace) const {
    ScheduleInputs inputs = inputs_of(trace);
    inputs.candidates = candidates;
    return make_schedule(trace, inputs).predicted_seconds;
  }
  static ScheduleInputs inputs_of(const StepTrace& trace) {
    return {.budget_bytes = trace.floor_bytes() + 3, .rates = {1, 1, 0}};
  }

  Arena arena{1 << 20};
  Ledger ledger{"test", 1 << 20};
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 20};
  testing::SameThreadTimeline out, in;
  Pager pager{memory, host, out, in, 0};
};

TEST_F(StepPlannerTest, AScheduleThatStepsLeaveAgainAndAgainIsNotSearchedForLong) {
  constexpr int32_t kFirst = 300 / 4, kFew = 8;  // the first plan of a step serves one step
  int differ = 0;
  for (uint32_t seed = 0; seed < 1000 && differ < 5; ++seed) {
    const StepTrace trace = testing::RandomTrace(seed).make();
    if (found_by(kFew, trace) <= found_by(kFirst, trace)) continue;
    ++differ;
    StepPlanner planner(pager, inputs_of(trace));
    StepPlan& plan = planner.plan_of("step");
    for (int left = 0; left < 2; ++left) {
      planner.learn(plan, trace, {.as_planned = false});
      EXPECT_EQ(plan.schedule.predicted_seconds, found_by(kFirst, plan.trace)) << "seed " << seed;
    }
    planner.learn(plan, trace, {.as_planned = false});
    EXPECT_EQ(plan.left_in_a_row, 2);
    EXPECT_EQ(plan.schedule.predicted_seconds, found_by(kFew, plan.trace)) << "seed " << seed;
    planner.learn(plan, trace, {.as_planned = true});
    EXPECT_EQ(plan.left_in_a_row, 0);
    EXPECT_EQ(plan.schedule.predicted_seconds, found_by(kFirst, plan.trace)) << "seed " << seed;
  }
  EXPECT_EQ(differ, 5);
}

}  // namespace
}  // namespace spillway
