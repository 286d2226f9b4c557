// Tests of the choice of K-FAC's interval among those that were tried.
#include "runtime/training/choose_interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace spillway::runtime {
namespace {

constexpr int64_t kMost = 16;

/// Returns a try of an interval whose waits have room for `room` seconds a step, where a refresh takes 1.
TriedInterval tried(int64_t interval, double room) {
  const double load = 1 / (static_cast<double>(interval) * room);
  return {.interval = interval,
          .step_seconds = 1 + std::max(0.0, load - 1),
          .excess = std::max(0.0, load - 1),
          .load = load};
}

TEST(ChooseIntervalTest, FindsTheLeastIntervalThatHasTime) {
  for (int64_t least = 2; least <= kMost; ++least)
    for (int64_t first : {2, 5, 16}) {
      std::vector<TriedInterval> all{tried(first, 1.0 / static_cast<double>(least))};
      while (const int64_t next = next_interval(all, kMost)) {
        ASSERT_LE(all.size(), 4U);
        all.push_back(tried(next, 1.0 / static_cast<double>(least)));
      }
      EXPECT_EQ(best_interval(all).interval, least) << "after " << first;
    }
}

TEST(ChooseIntervalTest, TriesNoIntervalTwice) {
  // The loads are too small, as where a long piece fits no wait.
  std::vector<TriedInterval> all{{.interval = 5, .excess = 0.2, .load = 0.3}};
  EXPECT_EQ(next_interval(all, kMost), 6);
  all.push_back({.interval = 6, .excess = 0.005, .load = 0.3});
  EXPECT_EQ(next_interval(all, kMost), 0);
  EXPECT_EQ(best_interval(all).interval, 6);
}

TEST(ChooseIntervalTest, WhereNoIntervalHasTimeTheShortestStepsCount) {
  const std::vector<TriedInterval> all{{.interval = 5, .step_seconds = 3, .excess = 0.5, .load = 9},
                                       {.interval = 16, .step_seconds = 2, .excess = 0.2, .load = 3}};
  EXPECT_EQ(next_interval(all, kMost), 0);
  EXPECT_EQ(best_interval(all).interval, 16);
}

}  // namespace
}  // namespace spillway::runtime
