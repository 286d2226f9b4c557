#include "runtime/results/train_result.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TrainResult with_steps(std::vector<double> seconds) {
  TrainResult result;
  result.step_seconds = std::move(seconds);
  return result;
}

TEST(TrainResultTest, LeavesTheFirstTwoStepsOutOfTheMedian) {
  EXPECT_EQ(with_steps({9, 8, 1, 3, 2}).median_step_seconds(), 2);
  EXPECT_EQ(with_steps({9, 7}).median_step_seconds(), 8) << "there are no others";
}

TEST(TrainResultTest, ComparesTheStepsThatBothRunsDid) {
  const TrainResult longer = with_steps({9, 9, 4, 4, 100, 100, 100});
  EXPECT_EQ(step_time_ratio(longer, with_steps({5, 5, 2, 2})), 2);
  EXPECT_EQ(step_time_ratio(with_steps({5, 5, 2, 2}), longer), 0.5);
  EXPECT_EQ(step_time_ratio(longer, with_steps({})), 0);
}

TEST(TrainResultTest, CountsBytesAboveTheBudgetAlone) {
  TrainResult result;
  EXPECT_EQ(result.over_budget_bytes(), 0) << "there is no budget";
  result.budget_bytes = 100;
  result.peak_bytes = 90;
  EXPECT_EQ(result.over_budget_bytes(), 0);
  result.peak_bytes = 130;
  EXPECT_EQ(result.over_budget_bytes(), 30);
}

TEST(TrainResultTest, TellsAPhasesSecondsOverTheRanks) {
  KfacSummary kfac;
  const kfac::KfacPhase decompose{"", "", &kfac::KfacSeconds::decompose};
  EXPECT_EQ(kfac.over_ranks(decompose).fastest, 0) << "no rank told them";
  kfac.seconds_by_rank = {{.decompose = 1}, {.decompose = 5}, {.decompose = 3}};
  EXPECT_EQ(kfac.over_ranks(decompose).slowest, 5);
  EXPECT_EQ(kfac.over_ranks(decompose).mean, 3);
  EXPECT_EQ(kfac.over_ranks(decompose).fastest, 1);
}

TEST(TrainResultTest, HidesTheShareOfAnAllreduceThatTrainingDoesNotWaitFor) {
  AllreduceSummary allreduce;
  EXPECT_EQ(allreduce.hidden_percent(), 0) << "there was none";
  allreduce.seconds_per_step = 4;
  allreduce.exposed_seconds_per_step = 1;
  EXPECT_EQ(allreduce.hidden_percent(), 75);
  allreduce.exposed_seconds_per_step = 5;
  EXPECT_EQ(allreduce.hidden_percent(), 0) << "a late rank's wait is no negative share";
}

}  // namespace
}  // namespace spillway
