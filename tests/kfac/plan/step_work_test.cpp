// Tests of the work of each step by K-FAC's intervals.
#include "kfac/plan/step_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace spillway::kfac {
namespace {

KfacOptions with_intervals(double factors, double decompositions) {
  KfacOptions options;
  options.factor_interval = factors;
  options.inverse_interval = decompositions;
  return options;
}

void expect_shares(const KfacOptions& options, const std::map<std::string, double>& expected) {
  const auto shares = shares_of_kinds(options);
  ASSERT_EQ(shares.size(), expected.size());
  for (const auto& [kind, share] : expected) {
    ASSERT_TRUE(shares.contains(kind)) << kind;
    EXPECT_NEAR(shares.at(kind), share, 1e-9) << kind;
  }
}

TEST(StepWorkTest, SharesOfKindsFollowTheIntervals) {
  expect_shares(with_intervals(1, 1), {{"factor+decompose", 1}});
  expect_shares(with_intervals(10, 100), {{"plain", 0.9}, {"factor", 0.09}, {"factor+decompose", 0.01}});
  expect_shares(with_intervals(1, 4), {{"factor", 0.75}, {"factor+decompose", 0.25}});
}

TEST(StepWorkTest, DefaultIntervalsAreShortAtTheStartAndLongAfterIt) {
  const KfacOptions options;
  KfacCounters counters;
  std::vector<int64_t> updates, decompositions;
  for (; counters.steps < 240; ++counters.steps) {
    const StepWork work = work_of_step(counters, options);
    if (work.updates_factors) updates.push_back(counters.last_factor_step = counters.steps);
    if (work.decomposes) decompositions.push_back(counters.last_decomposition_step = counters.steps);
  }
  const auto among = [](const std::vector<int64_t>& steps, int64_t begin, int64_t end) {
    return std::ranges::count_if(steps, [&](int64_t step) { return step >= begin && step < end; });
  };
  EXPECT_EQ(among(updates, 0, kStartSteps), (kStartSteps + 2) / 3);
  EXPECT_EQ(among(decompositions, 0, kStartSteps), (kStartSteps + 2) / 3);
  EXPECT_EQ(among(updates, kStartSteps, kStartSteps + 100), 10);
  EXPECT_EQ(among(decompositions, kStartSteps, kStartSteps + 200), 2);
}

TEST(StepWorkTest, ALongRunWithDefaultIntervalsHasTheSharesOfTheLongOnes) {
  expect_shares({}, {{"plain", 0.9}, {"factor", 0.09}, {"factor+decompose", 0.01}});
  const KfacOptions defaults;
  const auto half_as_often = [](const StepSchedule& interval) {
    return StepSchedule([interval](int64_t step) { return 2 * interval.at(step); });
  };
  expect_shares({.factor_interval = half_as_often(defaults.factor_interval_in_use()),
                 .inverse_interval = half_as_often(defaults.inverse_interval_in_use())},
                {{"plain", 0.95}, {"factor", 0.045}, {"factor+decompose", 0.005}});
}

TEST(StepWorkTest, TheBurnInDoesNotCount) {
  KfacOptions options = with_intervals(10, 10);
  options.burn_in = 50;
  expect_shares(options, {{"plain", 0.9}, {"factor+decompose", 0.1}});
}

TEST(StepWorkTest, AStaleBasisIsLaunchedAndAdoptedInStepsOfTheirOwn) {
  KfacOptions options = with_intervals(10, 10);
  options.staleness = 3;
  expect_shares(options, {{"plain", 0.8}, {"factor+launch", 0.1}, {"decompose", 0.1}});
}

TEST(StepWorkTest, LayersWithIntervalsOfTheirOwnMakeACycle) {
  KfacOptions options;
  options.layer_curvature = {{.layer = "a", .interval = 2, .slot = 0}, {.layer = "b", .interval = 4, .slot = 1}};
  const auto shares = shares_of_kinds(options);
  double sum = 0;
  for (const auto& [kind, share] : shares) sum += share;
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_NEAR(shares.at("plain"), 0.25, 1e-9);
}

/// Expects the kinds of a long run within steps_of_all_kinds() of the shortened one, its first step aside.
void expect_all_kinds_soon(const KfacOptions& options) {
  const KfacOptions shortened = with_short_intervals(options);
  KfacCounters counters;
  std::map<std::string, int> seen;
  for (int64_t step = 0; step < steps_of_all_kinds(shortened); ++step) {
    const StepWork work = work_of_step(counters, shortened);
    if (step > 0) ++seen[std::string(work.kind)];
    if (work.updates_factors) counters.last_factor_step = step;
    if (work.launches) counters.last_launch_step = counters.last_decomposition_step = step;
    if (work.decomposes && (shortened.staleness == 0 || counters.last_decomposition_step < 0))
      counters.last_decomposition_step = step;
    ++counters.steps;
  }
  const auto shares = shares_of_kinds(options);
  EXPECT_EQ(seen.size(), shares.size());
  for (const auto& [kind, share] : shares) EXPECT_TRUE(seen.contains(kind)) << kind;
  EXPECT_LE(steps_of_all_kinds(shortened), 32);
}

TEST(StepWorkTest, ShortIntervalsHaveTheSameKinds) {
  for (const auto& [factors, decompositions] :
       {std::pair{1.0, 1.0}, {1.0, 10.0}, {10.0, 10.0}, {10.0, 100.0}, {3.0, 3.0}, {50.0, 500.0}, {2.0, 3.0}})
    expect_all_kinds_soon(with_intervals(factors, decompositions));
  KfacOptions stale = with_intervals(10, 100);
  stale.staleness = 5;
  expect_all_kinds_soon(stale);
}

}  // namespace
}  // namespace spillway::kfac
