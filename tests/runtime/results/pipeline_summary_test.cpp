#include "runtime/results/pipeline_summary.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

PipelineRankSummary rank_with(double forward, double backward, double renew, double update) {
  PipelineRankSummary rank;
  rank.seconds[PipelineWork::forward] = forward;
  rank.seconds[PipelineWork::backward] = backward;
  rank.seconds[PipelineWork::renew] = renew;
  rank.seconds[PipelineWork::update] = update;
  return rank;
}

TEST(PipelineSummaryTest, CountsPassesAndKfacApart) {
  const PipelineRankSummary rank = rank_with(1, 2, 4, 8);
  EXPECT_EQ(rank.seconds.passes(), 3);
  EXPECT_EQ(rank.seconds.kfac(), 4);
}

TEST(PipelineSummaryTest, IsBoundByTheBusiestRankAndTheShortestUpdate) {
  PipelineSummary summary;
  EXPECT_EQ(summary.bound_seconds(), 0) << "without ranks";
  summary.ranks = {rank_with(1, 2, 0, 5), rank_with(2, 3, 1, 4)};
  EXPECT_EQ(summary.bound_seconds(), 6 + 4);
}

TEST(PipelineSummaryTest, TakesWorkAsAShareOfThePass) {
  PipelineSummary summary;
  summary.ranks = {rank_with(1, 2, 1, 9), rank_with(2, 3, 1, 9)};
  EXPECT_EQ(summary.utilization(), 0) << "no pass was measured";
  summary.pass_seconds = 10;
  EXPECT_EQ(summary.mean_seconds().passes(), 4);
  EXPECT_EQ(summary.utilization(), 0.5);
  EXPECT_EQ(summary.bubble(summary.ranks[0].seconds), 7);
}

TEST(PipelineSummaryTest, DescribesWork) {
  EXPECT_EQ(describe({.work = PipelineWork::forward, .stage = 0, .micro_batch = 3}),
            "forward of stage 0, micro-batch 3");
  EXPECT_EQ(describe({.work = PipelineWork::renew, .stage = 1}), "K-FAC renew of stage 1");
  EXPECT_EQ(describe({.work = PipelineWork::input_gradient}), "input gradient");
}

}  // namespace
}  // namespace spillway
