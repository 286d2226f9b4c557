#include "kfac/inverse/truncated_eigenbasis.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "tests/reference/kfac_dense.h"

namespace spillway::kfac {
namespace {

/// Returns a truncated basis of `count` factors that were never seen.
Eigenbasis unseen(int64_t count, int64_t side, int64_t rank, at::ScalarType type = at::kDouble) {
  Eigenbasis basis{at::zeros({count, side, rank}, type), at::zeros({count, rank + 1}, type)};
  randomize({basis});
  return basis;
}

/// Returns `count` random covariances of `rows` samples, [count, side, side].
at::Tensor covariance(int64_t count, int64_t side, int64_t rows) {
  const auto x = at::randn({count, rows, side}, at::kDouble);
  return x.transpose(1, 2).bmm(x) / static_cast<double>(rows);
}

/// Returns the symmetric matrix of leading `values` in random directions and `tail` in all others: [1, side, side].
at::Tensor with_spectrum(const at::Tensor& values, double tail, int64_t side) {
  const auto q = std::get<0>(at::linalg_qr(at::randn({1, side, values.size(0)}, at::kDouble)));
  return q.mul(values - tail).bmm(q.transpose(1, 2)) + tail * at::eye(side, at::kDouble);
}

double sum_of_largest(const at::Tensor& factor, int64_t rank) {
  const auto values = std::get<0>(eigh(factor));
  return values.narrow(1, values.size(1) - rank, rank).sum().item<double>();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace

TEST(TruncatedEigenbasisTest, IsTheFactorWhereTheRestIsRound) {
  torch::manual_seed(1);
  for (double tail : {0.0, 1e-3}) {
    const auto factor = with_spectrum(at::linspace(1, 2, 6, at::kDouble), tail, 40);
    const auto basis = unseen(1, 40, 6);
    ASSERT_TRUE(iterate_subspace(factor, basis, kFirstSubspaceIterations));
    EXPECT_NEAR(basis.values[0][6].item<double>(), tail, 1e-12);
    EXPECT_LT(largest_difference(reference::rebuilt(basis), factor), 1e-10);
  }
}

TEST(TruncatedEigenbasisTest, KeepsTheTraceOfEachFactor) {
  torch::manual_seed(2);
  const auto factors = covariance(3, 30, 20);
  const auto basis = unseen(3, 30, 4);
  ASSERT_TRUE(iterate_subspace(factors, basis));
  const auto traces = reference::rebuilt(basis).diagonal(0, 1, 2).sum(1);
  EXPECT_LT(largest_difference(traces, factors.diagonal(0, 1, 2).sum(1)), 1e-12);
  const auto identity = basis.vectors.transpose(1, 2).bmm(basis.vectors);
  EXPECT_LT(largest_difference(identity, at::eye(4, at::kDouble).expand_as(identity)), 1e-13);
}

TEST(TruncatedEigenbasisTest, OneIterationAnUpdateFollowsARunningAverage) {
  torch::manual_seed(3);
  constexpr int64_t kSide = 60, kRank = 10;
  // Directions differ in variance as those of activations do.
  const auto scale = at::pow(0.9, at::arange(kSide, at::kDouble)).outer(at::pow(0.9, at::arange(kSide, at::kDouble)));
  auto factor = covariance(1, kSide, 15) * scale;
  const auto basis = unseen(1, kSide, kRank, at::kFloat);
  ASSERT_TRUE(iterate_subspace(factor.to(at::kFloat), basis, kFirstSubspaceIterations));
  for (int update = 0; update < 30; ++update) {
    factor = 0.9 * factor + 0.1 * covariance(1, kSide, 15) * scale;
    ASSERT_TRUE(iterate_subspace(factor.to(at::kFloat), basis));
    EXPECT_GT(basis.values.narrow(1, 0, kRank).sum().item<double>(), 0.98 * sum_of_largest(factor, kRank));
  }
}

TEST(TruncatedEigenbasisTest, NoFactorDependsOnTheOthers) {
  torch::manual_seed(4);
  const auto factors = covariance(2, 20, 30);
  const auto both = unseen(2, 20, 3);
  const Eigenbasis second{both.vectors.narrow(0, 1, 1).clone(), both.values.narrow(0, 1, 1).clone()};
  ASSERT_TRUE(iterate_subspace(factors, both, 2));
  ASSERT_TRUE(iterate_subspace(factors.narrow(0, 1, 1), second, 2));
  EXPECT_LT(largest_difference(both.values[1], second.values[0]), 1e-12);
}

TEST(TruncatedEigenbasisTest, SeveralAtOnceAreTheirOwnIterations) {
  torch::manual_seed(14);
  std::vector<at::Tensor> factors;
  std::vector<Eigenbasis> alone, together;
  for (const int64_t count : {1, 3, 1}) {
    factors.push_back(covariance(count, 30, 40));
    alone.push_back(unseen(count, 30, 4));
    together.push_back(unseen(count, 30, 4));
    ASSERT_TRUE(iterate_subspace(factors.back(), alone.back(), 2));
  }
  EXPECT_EQ(iterate_subspaces(at::cat(factors), together, 2), std::vector<bool>(3, true));
  for (size_t i = 0; i < factors.size(); ++i)
    EXPECT_LT(largest_difference(reference::rebuilt(together[i]), reference::rebuilt(alone[i])), 1e-12) << i;

  const auto before = together[1].vectors.clone(), of_last = together[2].vectors.clone();
  factors[1][2][3][3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(iterate_subspaces(at::cat(factors), together), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(together[1].vectors.equal(before));
  EXPECT_FALSE(together[2].vectors.equal(of_last));
}

/// Expects orthonormal columns that span those of `y`.
void expect_orthogonal_basis(const at::Tensor& q, const at::Tensor& y, double tolerance) {
  const auto wide = q.to(at::kDouble), projected = wide.bmm(wide.transpose(1, 2).bmm(y.to(at::kDouble)));
  const auto identity = at::eye(q.size(2), at::kDouble);
  EXPECT_LT(largest_difference(wide.transpose(1, 2).bmm(wide), identity.expand({q.size(0), -1, -1})), tolerance);
  const auto lengths = y.to(at::kDouble).norm(2, {1}, true);
  EXPECT_LT(((projected - y) / lengths).abs().max().item<double>(), tolerance);
}

TEST(CholeskyQrTest, IsAnOrthogonalBasisUpToLargeConditions) {
  torch::manual_seed(15);
  for (const double condition : {1.0, 1e3, 1e6}) {
    const auto mixed = std::get<0>(at::linalg_qr(at::randn({2, 8, 8}, at::kDouble)));
    const auto scales = at::logspace(0, -std::log10(condition), 8, 10, at::kDouble);
    const auto y = std::get<0>(at::linalg_qr(at::randn({2, 50, 8}, at::kDouble))).mul(scales).bmm(mixed);
    expect_orthogonal_basis(cholesky_qr(y), y, 1e-8);
    expect_orthogonal_basis(cholesky_qr(y.to(at::kFloat)), y.to(at::kFloat), 1e-5);
    const auto far_apart = y * at::logspace(0, -30, 8, 10, at::kDouble);
    EXPECT_TRUE(at::isfinite(cholesky_qr(far_apart)).all().item<bool>()) << "the columns' lengths do not matter";
  }
}

TEST(CholeskyQrTest, IsNanWhereItWouldNotBeOrthogonalAndThereAlone) {
  torch::manual_seed(16);
  auto y = at::randn({4, 20, 5}, at::kDouble);
  y[1].select(1, 2).zero_();
  y[2].copy_(y[2].select(1, 0).unsqueeze(1).expand({20, 5}));
  const auto q = cholesky_qr(y);
  EXPECT_FALSE(at::isfinite(q[1]).all().item<bool>());
  EXPECT_FALSE(at::isfinite(q[2]).all().item<bool>());
  expect_orthogonal_basis(at::stack({q[0], q[3]}), at::stack({y[0], y[3]}), 1e-12);
}

TEST(TruncatedEigenbasisTest, StartsFromTheSameColumnsAndLeavesTheUsersRandomNumbers) {
  torch::manual_seed(5);
  const auto next = at::rand({1});
  torch::manual_seed(5);
  const auto basis = unseen(1, 20, 3);
  EXPECT_TRUE(at::rand({1}).equal(next));
  EXPECT_TRUE(unseen(1, 20, 3).vectors.equal(basis.vectors));
}

TEST(TruncatedEigenbasisTest, AFactorThatIsZeroLeavesTheVectors) {
  const auto basis = unseen(1, 20, 3);
  const auto before = basis.vectors.clone();
  EXPECT_TRUE(iterate_subspace(at::zeros({1, 20, 20}, at::kDouble), basis));
  EXPECT_TRUE(basis.vectors.equal(before));
  EXPECT_EQ(basis.values.count_nonzero().item<int64_t>(), 0);
}

TEST(TruncatedEigenbasisTest, AFactorThatIsNotFiniteChangesNothing) {
  torch::manual_seed(6);
  auto factor = covariance(2, 20, 30);
  const auto basis = unseen(2, 20, 3);
  ASSERT_TRUE(iterate_subspace(factor, basis));
  const Eigenbasis before{basis.vectors.clone(), basis.values.clone()};
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    factor[1][2][2] = bad;
    EXPECT_FALSE(iterate_subspace(factor, basis));
    EXPECT_TRUE(basis.vectors.equal(before.vectors));
    EXPECT_TRUE(basis.values.equal(before.values));
  }
}

/// Does one iteration in pieces.
bool iterate_in_pieces(const at::Tensor& factor, const Eigenbasis& basis, int64_t most_columns) {
  SubspaceIteration iteration(factor, basis.vectors.size(2), most_columns);
  const int64_t pieces = SubspaceIteration::pieces(basis.vectors.size(2), most_columns);
  for (int64_t piece = 0; piece < pieces; ++piece) iteration.run_next(basis);
  return iteration.keep(basis);
}

TEST(SubspaceIterationTest, IsOneIterationAtOnce) {
  torch::manual_seed(7);
  const auto scale = at::pow(0.9, at::arange(60, at::kDouble)).outer(at::pow(0.9, at::arange(60, at::kDouble)));
  const auto factor = covariance(2, 60, 80) * scale;
  for (int64_t columns : {1, 3, 4, 9, 10, 100}) {
    const auto whole = unseen(2, 60, 10), pieces = unseen(2, 60, 10);
    ASSERT_TRUE(iterate_subspace(factor, whole));
    ASSERT_TRUE(iterate_in_pieces(factor, pieces, columns));
    EXPECT_LT(largest_difference(pieces.values, whole.values), 1e-12) << columns;
    EXPECT_LT(largest_difference(reference::rebuilt(pieces), reference::rebuilt(whole)), 1e-12) << columns;
  }
}

TEST(SubspaceIterationTest, AFactorThatIsZeroOrNotFiniteLeavesTheVectors) {
  torch::manual_seed(8);
  const auto basis = unseen(1, 20, 3);
  const auto before = basis.vectors.clone();
  EXPECT_TRUE(iterate_in_pieces(at::zeros({1, 20, 20}, at::kDouble), basis, 2));
  EXPECT_TRUE(basis.vectors.equal(before));
  EXPECT_EQ(basis.values.count_nonzero().item<int64_t>(), 0);
  auto factor = covariance(1, 20, 30);
  factor[0][2][2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(iterate_in_pieces(factor, basis, 2));
  EXPECT_TRUE(basis.vectors.equal(before));
}

}  // namespace spillway::kfac
