#include "kfac/plan/decomposition_costs.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace spillway::kfac {

TEST(DecompositionCostsTest, GivesWhatWasMeasuredAndAPowerLawBetween) {
  const DecompositionCosts costs{.points = {{10, 1}, {40, 16}, {80, 128}}};  // squares, then cubes
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(10, 1), 1);
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(20, 1), 4);
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(40, 3), 48);
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(60, 1), 16 * 1.5 * 1.5 * 1.5);
}

TEST(DecompositionCostsTest, GoesOnWithTheCubeAboveAndStaysLevelBelow) {
  const DecompositionCosts costs{.points = {{10, 1}}};
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(20, 1), 8);
  EXPECT_DOUBLE_EQ(costs.decomposition_seconds(1, 2), 2);
}

TEST(DecompositionCostsTest, NeverFallsWithTheSide) {
  const DecompositionCosts costs;
  costs.validate();
  for (int64_t side = 1; side < 4000; ++side)
    ASSERT_LE(costs.decomposition_seconds(side, 1), costs.decomposition_seconds(side + 1, 1)) << side;
}

TEST(DecompositionCostsTest, RefusesPointsThatFallAndSizesBelowOne) {
  using Points = std::vector<DecompositionCosts::Point>;
  for (const Points& points : {Points{}, Points{{0, 1}}, Points{{5, 0}}, Points{{5, 2}, {6, 1}}, Points{{5, 1}, {5, 2}},
                               Points{{5, std::numeric_limits<double>::quiet_NaN()}}})
    EXPECT_THROW(DecompositionCosts{points}.validate(), BadRequest);
  EXPECT_THROW(DecompositionCosts{}.decomposition_seconds(0, 1), BadRequest);
  EXPECT_THROW(DecompositionCosts{}.decomposition_seconds(1, 0), BadRequest);
}

}  // namespace spillway::kfac
