// Tests of forecasts over ranks, and of the choice between ways to run.
#include "runtime/planning/run_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "runtime/planning/forecast.h"
#include "runtime/planning/plan_report.h"

namespace spillway::runtime {
namespace {

constexpr int64_t kPage = 1 << 20;

/// A step of operators with these names and times. Each makes a page that the last one reads.
swap::StepTrace step(const std::string& kind, const std::vector<std::pair<const char*, double>>& operators) {
  swap::StepTrace trace{.kind = kind, .operators = {}, .slots = {}};
  const auto last = static_cast<int32_t>(operators.size());
  for (const auto& [name, seconds] : operators) {
    const auto i = static_cast<int32_t>(trace.operators.size());
    trace.operators.push_back({.name = name, .seconds = seconds, .own_bytes = kPage, .births = {i}});
    trace.slots.push_back(
        {.bytes = kPage, .birth = i, .born_as_output = true, .death = last, .uses = {i, last}, .writes = {i}});
  }
  trace.operators.push_back({.name = "read", .seconds = 0.001});
  for (int32_t s = 0; s < last; ++s) trace.operators.back().touched.push_back(s);
  trace.operators.back().leased_bytes = last * kPage;
  return trace;
}

RankSteps rank(int number, std::vector<KindOfStep> kinds) {
  RankSteps steps{.rank = number, .kinds = std::move(kinds)};
  for (const KindOfStep& kind : steps.kinds) {
    steps.peak_bytes = std::max(steps.peak_bytes, kind.trace.unconstrained_peak_bytes());
    steps.floor_bytes = std::max(steps.floor_bytes, kind.trace.floor_bytes());
  }
  steps.floor_operator = "read";
  return steps;
}

TEST(ForecastTest, TheMeanFollowsTheSharesOfTheKinds) {
  const auto steps = rank(
      0, {{0.75, step("plain", {{"a", 1}})}, {0.25, step("factor", {{"a", 3}})}, {0, step("validate", {{"a", 9}})}});
  const Forecast result = forecast({steps}, {});
  ASSERT_TRUE(result.feasible);
  EXPECT_NEAR(result.seconds, 0.75 * 1.001 + 0.25 * 3.001, 1e-9);
  EXPECT_EQ(result.kinds.size(), 3);
}

TEST(ForecastTest, RanksMeetInTheCollectivesOfAll) {
  // Each rank is the slower one in one part, so a step takes as long as both slow parts.
  const auto first = rank(0, {{1, step("plain", {{"a", 3}, {"spillway::allreduce_", 0.5}, {"b", 1}})}});
  const auto second = rank(1, {{1, step("plain", {{"a", 1}, {"spillway::allreduce_", 0.5}, {"b", 2}})}});
  const Forecast result = forecast({first, second}, {});
  EXPECT_NEAR(result.seconds, 3 + 0.5 + 2 + 0.001, 1e-9);
  EXPECT_NEAR(result.kinds[0].message_seconds, 0.5, 1e-9);
  EXPECT_NEAR(result.kinds[0].compute_seconds, 4.001, 1e-9);
}

TEST(ForecastTest, BroadcastsAreNotMeetingsOfAll) {
  const auto first = rank(0, {{1, step("plain", {{"a", 3}, {"spillway::broadcast_", 0.5}, {"b", 1}})}});
  const auto second = rank(1, {{1, step("plain", {{"a", 1}, {"spillway::broadcast_", 0.5}, {"b", 2}})}});
  EXPECT_NEAR(forecast({first, second}, {}).seconds, 4.501, 1e-9);
}

TEST(ForecastTest, ARankMayLackAKind) {
  const auto first = rank(0, {{1, step("plain", {{"a", 1}})}, {0, step("validate", {{"a", 1}})}});
  const auto second = rank(1, {{1, step("plain", {{"a", 2}})}});
  EXPECT_NEAR(forecast({first, second}, {}).seconds, 2.001, 1e-9);
}

TEST(ForecastTest, ABudgetBelowAFloorIsNotFeasible) {
  const auto steps = rank(0, {{1, step("plain", {{"a", 1}, {"b", 1}})}});
  EXPECT_TRUE(forecast({steps}, {.budget_bytes = steps.floor_bytes}).feasible);
  EXPECT_FALSE(forecast({steps}, {.budget_bytes = steps.floor_bytes - 1}).feasible);
}

std::vector<PlanChoice> two_choices() {
  return {{.workers = {kfac::Strategy::hybrid, 1}}, {.workers = {kfac::Strategy::hybrid, 0.5}}};
}

/// A planner whose choices take these times.
RunPlanner planner_of(double first, double second) {
  return RunPlanner(two_choices(), {}, [=](const PlanChoice& choice) {
    const double seconds = choice.workers.grad_worker_frac == 1 ? first : second;
    return std::vector{rank(0, {{1, step("plain", {{"a", seconds}})}})};
  });
}

TEST(RunPlanTest, TheFasterChoiceWins) {
  EXPECT_EQ(planner_of(2, 1).plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac, 0.5);
  EXPECT_EQ(planner_of(1, 2).plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac, 1);
}

TEST(RunPlanTest, TheEarlierChoiceWinsWithinTheForecastsAccuracy) {
  EXPECT_EQ(planner_of(1.004, 1).plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac, 1);
  EXPECT_EQ(planner_of(1.006, 1).plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac, 0.5);
}

TEST(RunPlanTest, AChoiceThatDoesNotFitIsLast) {
  RunPlanner planner(two_choices(), {}, [](const PlanChoice& choice) {
    const bool large = choice.workers.grad_worker_frac == 1;
    std::vector<std::pair<const char*, double>> operators(large ? 4 : 2, {"a", large ? 0.1 : 1});
    return std::vector{rank(0, {{1, step("plain", operators)}})};
  });
  EXPECT_EQ(planner.plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac, 1);
  const RunPlan limited = planner.plan(3 * kPage);
  EXPECT_EQ(limited.best().choice.workers.grad_worker_frac, 0.5);
  EXPECT_NE(limited.reason().find("needs"), std::string::npos);
  EXPECT_FALSE(limited.weighed[1].forecast.feasible);
  EXPECT_LT(limited.best().floor_bytes, 3 * kPage);
  EXPECT_GT(limited.weighed[1].floor_bytes, 3 * kPage);
  const RunPlan impossible = planner.plan(kPage);
  EXPECT_FALSE(impossible.is_feasible());
  EXPECT_EQ(impossible.best().floor_bytes, limited.best().floor_bytes);
  EXPECT_NE(impossible.reason().find("smallest feasible budget"), std::string::npos);
}

TEST(RunPlanTest, StepsOfAChoiceAreMadeOnce) {
  int made = 0;
  RunPlanner planner(two_choices(), {}, [&](const PlanChoice&) {
    ++made;
    return std::vector{rank(0, {{1, step("plain", {{"a", 1}})}})};
  });
  for (int i = 0; i < 3; ++i) (void)planner.plan(kUnlimitedBytes);
  EXPECT_EQ(made, 2);
}

TEST(RunPlanTest, TheBestChoiceIsWeighedWithEachBufferOfGradients) {
  int made = 0;
  RunPlanner planner(
      two_choices(), {},
      [&](const PlanChoice& choice) {
        ++made;
        const double seconds = choice.gradient_buffer_bytes == 4 << 20 ? 0.9 : 1;
        return std::vector{rank(0, {{1, step("plain", {{"a", choice.workers.grad_worker_frac == 1 ? 2 : seconds}})}})};
      },
      {16 << 20, 4 << 20, 64 << 20});
  const RunPlan plan = planner.plan(kUnlimitedBytes);
  EXPECT_EQ(made, 4);  // both choices with the first buffer, and the better one with the others
  ASSERT_EQ(plan.weighed.size(), 4);
  EXPECT_EQ(plan.best().choice.workers.grad_worker_frac, 0.5);
  EXPECT_EQ(plan.best().choice.gradient_buffer_bytes, 4 << 20);
  EXPECT_NE(plan.reason().find("gradients in 4.00 MiB"), std::string::npos) << plan.reason();
}

TEST(PlanChoicesTest, OpenChoicesAreWeighedAndOthersKept) {
  kfac::KfacOptions options;
  options.strategy = kfac::Strategy::hybrid;
  EXPECT_EQ(plan_choices(options, true, 4).size(), 4);
  EXPECT_EQ(plan_choices(options, false, 4).size(), 1);
  EXPECT_EQ(plan_choices(options, true, 64).size(), 7);  // 1, 2, 4 … 64 workers
  const auto workers = [&](int64_t world) {
    std::vector<int64_t> all;
    for (const PlanChoice& choice : plan_choices(options, true, world))
      all.push_back(std::llround(choice.workers.grad_worker_frac * static_cast<double>(world)));
    return all;
  };
  EXPECT_EQ(workers(24), (std::vector<int64_t>{24, 12, 8, 6, 4, 3, 2, 1}));
  EXPECT_EQ(workers(23), (std::vector<int64_t>{23, 8, 4, 2, 1})) << "a prime number of ranks";
  options.strategy = kfac::Strategy::automatic;
  EXPECT_EQ(plan_choices(options, true, 4).size(), kfac::exact_choices(4).size());
}

/// A plan of one choice under 100 MiB, which takes this time or does not fit.
RunPlan plan_of(double seconds, int64_t floor_bytes, int64_t budget_bytes = 100 << 20) {
  WeighedChoice weighed{
      .choice = two_choices().front(), .forecast = {}, .floor_bytes = floor_bytes, .floor_operator = ""};
  weighed.forecast.seconds = seconds;
  weighed.forecast.feasible = floor_bytes <= budget_bytes;
  return {.budget_bytes = budget_bytes, .weighed = {weighed}};
}

TEST(ExplainTest, TellsWhatOtherBudgetsAndChangesWouldDo) {
  PlanReport report{.plan = plan_of(1, 80 << 20)};
  report.smaller = plan_of(0, 80 << 20, 75 << 20);
  report.larger = plan_of(0.9, 80 << 20, 133 << 20);
  report.taken = {{"batch", "--batch 2 --accumulate 4", {}}};
  report.proposals = {{"amp", "--amp bf16", plan_of(0.5, 40 << 20)}, {"split", "--split 56MiB", plan_of(1, 60 << 20)}};
  const std::string text = explain(report);
  for (const char* part : {"chosen   1 s a step", "allowed  batch is taken: --batch 2 --accumulate 4",
                           "smaller  with 75.0 MiB: does not fit; the floor is 80.0 MiB",
                           "larger   with 133 MiB: the same choice, 10 % faster",
                           "proposed --allow amp (--amp bf16): 50 % faster, with a floor of 40.0 MiB",
                           "proposed --allow split (--split 56MiB): as fast, with a floor of 60.0 MiB"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(ExplainTest, NamesTheChangeThatWouldMakeABudgetFeasible) {
  PlanReport report{.plan = plan_of(0, 120 << 20)};
  report.proposals = {{"amp", "--amp bf16", plan_of(0.5, 90 << 20)},
                      {"storage", "--kfac-storage bf16", plan_of(0, 110 << 20)}};
  const std::string text = explain(report);
  EXPECT_NE(text.find("smallest feasible budget is 120 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("--allow amp (--amp bf16): fits, with a floor of 90.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("a floor of 110 MiB, which is too much still"), std::string::npos) << text;
}

}  // namespace
}  // namespace spillway::runtime
