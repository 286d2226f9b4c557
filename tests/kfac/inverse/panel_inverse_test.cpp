#include "kfac/inverse/panel_inverse.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "kfac/plan/options.h"

namespace spillway::kfac {
namespace {

/// Returns `count` damped covariances, [count, side, side].
at::Tensor positive_definite(int64_t count, int64_t side, at::ScalarType type = at::kDouble) {
  const auto x = at::randn({count, side + 5, side}, at::kDouble);
  const auto covariance = x.transpose(1, 2).bmm(x) / static_cast<double>(side + 5);
  return (covariance + 0.1 * at::eye(side, at::kDouble)).to(type);
}

struct Inverse {
  at::Tensor inverses, solved;
};

Inverse in_panels(const at::Tensor& matrices, int64_t most_columns = kPanelColumns) {
  PanelInverse inverse(matrices.clone(), most_columns);
  for (int64_t piece = 0; piece < PanelInverse::pieces(matrices.size(1), most_columns); ++piece) inverse.run_next();
  return {inverse.inverses(), inverse.solved()};
}

/// Returns what the whole decomposition makes.
Inverse at_once(const at::Tensor& matrices) {
  const auto [root, info] = at::linalg_cholesky_ex(matrices);
  root.diagonal(0, 1, 2).masked_fill_(info.ne(0).unsqueeze(1), 1);
  const auto inverses = at::cholesky_inverse(root);
  return {inverses, info.eq(0).logical_and(at::isfinite(inverses.sum({1, 2})))};
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

}  // namespace

TEST(PanelsTest, AreOfWidthsThatDifferByOneAtMost) {
  for (int64_t columns : {1, 255, 256, 257, 700, 769, 3072}) {
    const Panels panels{columns, kPanelColumns};
    EXPECT_EQ(panels.count(), columns / kPanelColumns + (columns % kPanelColumns > 0));
    EXPECT_EQ(panels.begin(panels.count()), columns);
    for (int64_t k = 0; k < panels.count(); ++k) {
      EXPECT_LE(panels.width(k), kPanelColumns);
      EXPECT_LE(std::abs(panels.width(k) - panels.width(0)), 1);
    }
  }
}

TEST(PanelInverseTest, IsTheInverseOfTheWholeDecomposition) {
  torch::manual_seed(1);
  for (int64_t side : {1, 255, 256, 257, 700})
    for (int64_t count : {1, 2}) {
      const auto matrices = positive_definite(count, side);
      const auto expected = at_once(matrices), found = in_panels(matrices);
      EXPECT_LT(relative_difference(found.inverses, expected.inverses), 1e-12) << side;
      EXPECT_TRUE(found.inverses.equal(found.inverses.transpose(1, 2))) << side;
      EXPECT_TRUE(found.solved.equal(expected.solved)) << side;
    }
}

TEST(PanelInverseTest, HoldsForPanelsOfAnyWidth) {
  torch::manual_seed(2);
  const auto matrices = positive_definite(2, 37);
  const auto expected = at_once(matrices).inverses;
  for (int64_t columns : {1, 2, 5, 36, 37, 100})
    EXPECT_LT(relative_difference(in_panels(matrices, columns).inverses, expected), 1e-12) << columns;
}

TEST(PanelInverseTest, IsAsExactInSinglePrecision) {
  torch::manual_seed(3);
  const auto exact = positive_definite(1, 300);
  const auto expected = at_once(exact).inverses;
  const double whole = relative_difference(at_once(exact.to(at::kFloat)).inverses.to(at::kDouble), expected);
  EXPECT_LT(relative_difference(in_panels(exact.to(at::kFloat), 50).inverses.to(at::kDouble), expected), 4 * whole);
}

TEST(PanelInverseTest, TellsWhichMatricesHaveNone) {
  torch::manual_seed(4);
  constexpr int64_t kSide = 40, kColumns = 10;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  for (int64_t at : {0, 9, 15, 39})
    for (double bad : {-1.0, 0.0, kNan, kInfinity}) {
      auto matrices = positive_definite(3, kSide);
      const auto good = in_panels(matrices, kColumns).inverses;
      matrices[1][at][at] = bad;
      const auto found = in_panels(matrices, kColumns);
      EXPECT_TRUE(found.solved.equal(at_once(matrices).solved)) << at << ' ' << bad;
      // A pivot that is infinite has a reciprocal.
      EXPECT_EQ(found.solved.sum().item<int64_t>(), bad == kInfinity ? 3 : 2) << at << ' ' << bad;
      for (int64_t other : {0, 2}) EXPECT_TRUE(found.inverses[other].equal(good[other])) << at << ' ' << bad;
    }
}

}  // namespace spillway::kfac
