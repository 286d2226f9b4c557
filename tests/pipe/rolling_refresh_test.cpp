// Tests of rolling refreshes, and of cycles that they fill.
#include "pipe/rolling_refresh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "pipe/fill.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"

namespace spillway::pipe {
namespace {

TEST(RollingRefreshTest, StepsHaveAboutTheSameCost) {
  const std::vector<double> costs = {9, 1, 1, 1, 4, 4, 4, 4, 2, 2, 2, 2};
  for (int interval : {1, 2, 3, 4, 6}) {
    const auto all = rolling_refresh(costs, interval, 1);
    std::vector<double> load(interval, 0);
    for (size_t i = 0; i < costs.size(); ++i) {
      EXPECT_EQ(all[i].serves_step, all[i].taken_step + 1);
      load.at(all[i].taken_step) += costs[i];
    }
    const double least = std::max(9.0, 36.0 / interval);
    EXPECT_LE(*std::max_element(load.begin(), load.end()), 4.0 / 3 * least) << interval;
  }
}

TEST(RollingRefreshTest, FollowTheOrderOfLayersWhereCostsAreEqual) {
  const auto all = rolling_refresh(std::vector<double>(5, 1.0), 3, 0);
  std::vector<int> taken;
  for (const LayerRefresh& layer : all) taken.push_back(layer.taken_step);
  EXPECT_EQ(taken, (std::vector<int>{0, 1, 2, 0, 1}));
}

TEST(RollingRefreshTest, WrongIntervalsAreRefused) {
  const std::vector<double> costs = {1, 2};
  EXPECT_THROW((void)rolling_refresh(costs, 0, 0), BadRequest);
  EXPECT_THROW((void)rolling_refresh(costs, 2, 3), BadRequest);
  EXPECT_THROW((void)rolling_refresh(costs, 2, -1), BadRequest);
}

/// A pipeline of equal stages with some layers each, whose statistics and decompositions take as long everywhere.
struct Rolling {
  static constexpr int kRanks = 4, kLayers = 12;
  StepProgram program = one_forward_one_backward(kRanks, kRanks);
  Costs costs = equal_stages(kRanks, 29.24, 49.35);
  double statistics = 76.64 / kLayers, decomposition = 215.0 / kLayers;

  std::vector<double> layer_costs() const { return std::vector<double>(kLayers, kRanks * statistics + decomposition); }
  std::vector<Extra> refresh(const std::vector<LayerRefresh>& layers) const {
    std::vector<Extra> extras;
    for (int r = 0; r < kRanks; ++r)
      for (const LayerRefresh& layer : layers) {
        Extra extra{.rank = r, .taken_step = layer.taken_step, .serves_step = layer.serves_step, .held_bytes = 1};
        std::vector<int> before;
        for (int m = 0; m < kRanks; ++m)
          for (Work work : {Work::forward, Work::backward}) {
            extra.seconds = statistics / 2;
            extra.ready = {work, r, m};
            before.push_back(static_cast<int>(extras.size()));
            extras.push_back(extra);
          }
        extra.seconds = decomposition;
        extra.after = before;
        extras.push_back(extra);
      }
    return extras;
  }
};

TEST(RollingFillTest, BubblesAreFilledInTheIntervalThatTheyHoldTheWorkOf) {
  const Rolling rolling;
  const double work = Rolling::kRanks * rolling.statistics * Rolling::kLayers + 215.0;
  const double step = simulate(rolling.program, rolling.costs).seconds;
  const double bubble = simulate(rolling.program, rolling.costs).bubble(0);
  for (int interval : {1, 2, 3}) {
    const auto extras = rolling.refresh(rolling_refresh(rolling.layer_costs(), interval, std::min(interval, 2)));
    const Filled filled = fill(rolling.program, extras, rolling.costs, {.steps = interval, .margin = 0});
    const bool holds_all = interval >= work / bubble;  // from 2.21 on
    EXPECT_EQ(filled.exceeded_seconds() <= 0.001 * filled.unfilled_seconds, holds_all) << interval;
    if (!holds_all) continue;
    // Statistics serve two steps later at most, and some layers are held at once.
    for (int r = 0; r < Rolling::kRanks; ++r) {
      EXPECT_LE(filled.steps_until_done(r, extras), 3);
      EXPECT_LT(filled.held_bytes[r], Rolling::kLayers * (2 * Rolling::kRanks + 1));
    }
    EXPECT_NEAR(filled.utilization(), (4 * (29.24 + 49.35) + work / interval) / step, 0.001);
  }
}

}  // namespace
}  // namespace spillway::pipe
