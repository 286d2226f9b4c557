#include "runtime/io/placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace spillway {
using namespace runtime;
namespace {

using Rows = std::array<std::array<double, 4>, 3>;

// Voxels of 1 x 2 x 3 mm (W, H, D), from right to left, from front to back and upward.
const Rows kRows = {{{-1, 0, 0, 15}, {0, -2, 0, 20}, {0, 0, 3, -7}}};
const Shape3 kShape = {4, 5, 6};  // D, H, W

PlacedShape placed(const Rows& rows, const Shape3& shape = kShape) {
  return {shape, {rows, true}};
}

/// Turns `volume` onto the frame of kRows and returns by how many voxels it then misses; -1 where no axes match.
double miss(const PlacedShape& volume) {
  const auto turn = turn_onto(placed(kRows), volume);
  return turn ? offset_voxels(placed(kRows), volume, *turn) : -1;
}

}  // namespace

TEST(PlacementTest, LeavesAVolumeOfTheSamePlaceAsItIs) {
  EXPECT_EQ(turn_onto(placed(kRows), placed(kRows)), Turn{});
  EXPECT_EQ(miss(placed(kRows)), 0);
}

TEST(PlacementTest, TurnsAMirroredVolumeBack) {
  // The width counts from left to right, so its first voxel is the frame's last.
  const PlacedShape mirrored = placed({{{1, 0, 0, 10}, {0, -2, 0, 20}, {0, 0, 3, -7}}});
  const auto turn = turn_onto(placed(kRows), mirrored);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn->from, (std::array<int64_t, 3>{0, 1, 2}));
  EXPECT_EQ(turn->flipped, (std::array<bool, 3>{false, false, true}));
  EXPECT_EQ(miss(mirrored), 0);
}

TEST(PlacementTest, PutsAxesOfAnotherOrderBack) {
  // Stored as x = the frame's depth upward, y = its width, z = its height backward: from back to front.
  const PlacedShape turned = placed({{{0, -1, 0, 15}, {0, 0, 2, 12}, {3, 0, 0, -7}}}, {5, 6, 4});
  const auto turn = turn_onto(placed(kRows), turned);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turned_shape(turned.shape, *turn), kShape);
  EXPECT_EQ(turn->from, (std::array<int64_t, 3>{2, 0, 1}));
  EXPECT_EQ(turn->flipped, (std::array<bool, 3>{false, true, false}));
  EXPECT_NEAR(miss(turned), 0, 1e-12);
}

TEST(PlacementTest, MeasuresByHowManyVoxelsAnotherPlaceOrSpacingMisses) {
  Rows moved = kRows;
  moved[1][3] += 10;
  EXPECT_NEAR(miss(placed(moved)), 5, 1e-12);
  Rows wide = kRows;
  wide[0][0] *= 2;
  EXPECT_NEAR(miss(placed(wide)), 5, 1e-12);  // at the last of 6 voxels
  Rows rounded = kRows;
  rounded[0][3] += 1e-4;
  rounded[2][2] += 1e-6;
  EXPECT_LT(miss(placed(rounded)), kMaxOffsetVoxels);
}

TEST(PlacementTest, FindsNoTurnForAxesThatLieBetween) {
  const auto rotated = [](double degrees) {
    const double c = std::cos(degrees * M_PI / 180), s = std::sin(degrees * M_PI / 180);
    return placed({{{-c, s * 2, 0, 15}, {-s, -c * 2, 0, 20}, {0, 0, 3, -7}}});
  };
  EXPECT_LT(miss(rotated(0.01)), kMaxOffsetVoxels);
  EXPECT_GE(miss(rotated(0.01)), 0);
  EXPECT_GT(miss(rotated(5)), kMaxOffsetVoxels);
  EXPECT_GT(miss(rotated(40)), kMaxOffsetVoxels);
  // The frame's width and height both follow the volume's width most.
  EXPECT_EQ(miss(placed({{{-1, 0.1, 0, 15}, {-1, 0.1, 0.3, 20}, {0, 0.3, 3, -7}}})), -1);
}

TEST(PlacementTest, ComparesSpacingsAloneWhereAPlaceIsNotTold) {
  PlacedShape untold{kShape, {{{{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 3, 0}}}, false}};
  EXPECT_EQ(turn_onto(placed(kRows), untold), Turn{});
  EXPECT_EQ(miss(untold), 0);
  untold.placement.rows[2][2] = 1;
  EXPECT_NEAR(miss(untold), 2, 1e-12);
}

TEST(PlacementTest, KnowsMatricesThatCannotBeInverted) {
  EXPECT_TRUE(is_invertible({kRows, true}));
  EXPECT_FALSE(is_invertible({Rows{}, true}));
  Rows flat = kRows;
  flat[2] = flat[1];
  EXPECT_FALSE(is_invertible({flat, true}));
  Rows odd = kRows;
  odd[0][3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(is_invertible({odd, true}));
}

TEST(PlacementTest, SaysSpacingsAxesAndTheFirstVoxelsPlace) {
  EXPECT_EQ(describe({kRows, true}), "voxels of 1x2x3 mm, axes L P S, the first at (15, 20, -7) mm");
  EXPECT_EQ(describe({{{{1, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 3, 0}}}, false}), "voxels of 1x2x3 mm in no told place");
}

}  // namespace spillway
