#include "kfac/inverse/eigenbasis_refresh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "kfac/inverse/eigen_errors.h"
#include "kfac/inverse/measure_decompositions.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kSide = 160;

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(-2, -1);
}

// Returns a covariance whose eigenvalues fall over three decades.
at::Tensor covariance(int64_t groups, int64_t side, at::ScalarType type = at::kFloat) {
  const auto x = at::randn({groups, 3 * side, side}, at::kDouble) * at::logspace(0, -1.5, side, 10, at::kDouble);
  return transposed(x).bmm(x).div_(static_cast<double>(3 * side)).to(type);
}

at::Tensor small_symmetric(const at::Tensor& factor, double relative) {
  const auto noise = at::randn_like(factor);
  return (noise + transposed(noise)) * (relative * factor.abs().max() / 2);
}

Eigenbasis basis_of(const at::Tensor& factor) {
  auto basis = Eigenbasis::identity(factor.size(0), factor.size(1), factor.options());
  EXPECT_EQ(refresh(factor, basis), Refreshed::solved);
  return basis;
}

at::Tensor damping_of(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).mean().to(at::kDouble) * 0.3;
}

// Returns (F + δ)⁻¹ x, through the basis and densely in float64.
at::Tensor solve_through(const Eigenbasis& basis, const at::Tensor& x, const at::Tensor& damping) {
  const auto q = basis.vectors.to(at::kDouble);
  return q.bmm(transposed(q).bmm(x) / (basis.values.to(at::kDouble).unsqueeze(2) + damping));
}
at::Tensor solve_densely(const at::Tensor& factor, const at::Tensor& x, const at::Tensor& damping) {
  return at::linalg_solve(factor.to(at::kDouble) + damping * at::eye(factor.size(1), at::kDouble), x);
}
double relative_error(const at::Tensor& x, const at::Tensor& expected) {
  return ((x - expected).norm() / expected.norm()).item<double>();
}

void expect_decomposition(const at::Tensor& factor, const Eigenbasis& basis, double tolerance) {
  const auto q = basis.vectors, identity = at::eye(factor.size(1), factor.options());
  const auto restored = (q * basis.values.unsqueeze(1)).bmm(transposed(q));
  const double scale = std::max(factor.abs().max().item<double>(), 1e-300);
  EXPECT_LT((restored - factor).abs().max().item<double>(), tolerance * scale);
  EXPECT_LT((transposed(q).bmm(q) - identity).abs().max().item<double>(), tolerance);
}

class RefreshTest : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(3); }
};

}  // namespace

TEST_F(RefreshTest, KeepsTheEigenvectorsOfAFactorThatMovedLittle) {
  for (int64_t groups : {1, 3}) {
    const auto factor = covariance(groups, kSide);
    const auto basis = basis_of(factor);
    const auto vectors = basis.vectors.clone();
    const auto moved = factor * 1.7 + small_symmetric(factor, 1e-7);
    const auto damping = damping_of(moved), x = at::randn({groups, kSide, 5}, at::kDouble);
    ASSERT_EQ(refresh(moved, basis, damping, 1e-4), Refreshed::rescaled);
    EXPECT_TRUE(basis.vectors.equal(vectors));
    EXPECT_LT(relative_error(solve_through(basis, x, damping), solve_densely(moved, x, damping)), 1e-4);
  }
}

TEST_F(RefreshTest, SolvesAFactorThatMovedMuchInAnyOfItsGroups) {
  const auto factor = covariance(3, kSide);
  const auto basis = basis_of(factor);
  auto moved = factor.clone();
  moved[2] = covariance(1, kSide)[0];
  ASSERT_EQ(refresh(moved, basis, damping_of(moved), 1e-2), Refreshed::solved);
  expect_decomposition(moved, basis, 1e-5);
}

TEST_F(RefreshTest, BoundsTheErrorOfThePreconditionedGradientByItsTolerance) {
  const auto factor = covariance(1, kSide), other = covariance(1, kSide);
  const auto damping = damping_of(factor), x = at::randn({1, kSide, 8}, at::kDouble);
  int64_t kept = 0;
  for (double movement : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1})
    for (double tolerance : {1e-4, 1e-3, 1e-2, 1e-1}) {
      const auto basis = basis_of(factor);
      const auto moved = factor * (1 - movement) + other * movement;
      kept += refresh(moved, basis, damping, tolerance) == Refreshed::rescaled;
      const auto error = solve_through(basis, x, damping) - solve_densely(moved, x, damping);
      // The error is measured in the metric of the bound: ‖·‖ weighted with F + δ.
      const auto root = [&](const at::Tensor& v) {
        return (v * (moved.to(at::kDouble).bmm(v) + damping * v)).sum().sqrt();
      };
      const double relative = (root(error) / root(solve_densely(moved, x, damping))).item<double>();
      EXPECT_LT(relative, tolerance / (1 - tolerance)) << movement << " " << tolerance;
    }
  EXPECT_GT(kept, 4);
  EXPECT_LT(kept, 20);
}

TEST_F(RefreshTest, AsksForMoreWhereTheDampingIsTiny) {
  const auto factor = covariance(1, kSide, at::kDouble);
  const auto basis = basis_of(factor);
  auto moved = factor + small_symmetric(factor, 1e-7);
  EXPECT_EQ(refresh(moved, basis, damping_of(factor), 1e-3), Refreshed::rescaled);
  EXPECT_EQ(refresh(moved, basis, damping_of(factor) * 1e-9, 1e-3), Refreshed::solved);
}

TEST_F(RefreshTest, KeepsWhatAFullSolveCouldNotDoBetterEvenWithoutDamping) {
  const auto factor = covariance(1, kSide);
  const auto basis = basis_of(factor);
  EXPECT_EQ(refresh(factor * 2, basis, at::zeros({}, at::kDouble), 1e-6), Refreshed::rescaled);
}

TEST_F(RefreshTest, IsIndifferentToTheBasisInsideARepeatedEigenvalue) {
  const auto random = at::randn({1, kSide, kSide}, at::kDouble);
  const auto q = std::get<0>(at::linalg_qr(random));
  auto values = at::ones({1, kSide}, at::kDouble);
  values.narrow(1, 0, 5).fill_(7);
  const auto factor = (q * values.unsqueeze(1)).bmm(transposed(q));
  const auto basis = basis_of(factor);
  expect_decomposition(factor, basis, 1e-12);
  EXPECT_EQ(refresh(factor, basis, damping_of(factor), 1e-6), Refreshed::rescaled);
  expect_decomposition(factor, basis, 1e-12);
}

TEST_F(RefreshTest, SolvesAZeroFactorAndOneOfLowRank) {
  const auto zero = at::zeros({2, kSide, kSide});
  auto basis = Eigenbasis::identity(2, kSide, zero.options());
  EXPECT_NE(refresh(zero, basis, damping_of(zero), 1e-3), Refreshed::kept_last);
  EXPECT_EQ(basis.values.abs().max().item<double>(), 0);
  const auto x = at::randn({1, 7, kSide});
  const auto low = transposed(x).bmm(x);
  basis = basis_of(low);
  expect_decomposition(low, basis, 1e-5);
  EXPECT_EQ(refresh(low * 3, basis, damping_of(low), 1e-3), Refreshed::rescaled);
  EXPECT_GE(basis.values.min().item<double>(), 0);
  expect_decomposition(low * 3, basis, 1e-5);
}

TEST_F(RefreshTest, SolvesAnIllConditionedFactorAndOneElement) {
  const auto x = at::randn({1, 3 * kSide, kSide}, at::kDouble) * at::logspace(0, -6, kSide, 10, at::kDouble);
  const auto ill = transposed(x).bmm(x);  // condition 1e12
  for (auto type : {at::kFloat, at::kDouble})
    expect_decomposition(ill.to(type), basis_of(ill.to(type)), type == at::kFloat ? 1e-5 : 1e-12);
  const auto one = at::full({2, 1, 1}, 3.0F);
  EXPECT_TRUE(basis_of(one).values.equal(at::full({2, 1}, 3.0F)));
}

TEST_F(RefreshTest, SolvesFactorsOfAnyScale) {
  for (double scale : {1e-30, 1e-20, 1e20}) {
    const auto factor = (covariance(1, kSide, at::kDouble) * scale).to(at::kFloat);
    const auto basis = basis_of(factor);
    expect_decomposition(factor, basis, 1e-5);
    const auto other = (covariance(1, kSide, at::kDouble) * scale).to(at::kFloat);
    EXPECT_EQ(refresh(other, basis, damping_of(other), 1e-3), Refreshed::solved) << scale;
  }
}

TEST_F(RefreshTest, KeepsTheLastBasisWhenTheFactorIsNotFinite) {
  auto factor = covariance(1, kSide);
  const auto basis = basis_of(factor);
  const auto vectors = basis.vectors.clone(), values = basis.values.clone();
  const auto damping = damping_of(factor);
  factor[0][3][3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refresh(factor, basis, damping, 1e-2), Refreshed::kept_last);
  EXPECT_TRUE(basis.vectors.equal(vectors));
  EXPECT_TRUE(basis.values.equal(values));
}

TEST_F(RefreshTest, SolvesWhenTheLastEigenvectorsAreNotOrthogonal) {
  const auto factor = at::eye(kSide, at::kDouble).unsqueeze(0);
  auto basis = basis_of(factor);
  basis.vectors[0][0][1] = 0.5;
  EXPECT_EQ(refresh(factor, basis, at::full({}, 1e9, at::kDouble), 1e-2), Refreshed::solved);
}

TEST_F(RefreshTest, DependsOnTheBasisAloneAndGivesTheSameBitsAgain) {
  const auto factor = covariance(2, kSide);
  const auto basis = basis_of(factor);
  const Eigenbasis copy{basis.vectors.clone(), basis.values.clone()};
  const auto moved = factor + small_symmetric(factor, 1e-7);
  for (const auto& each : {basis, copy}) EXPECT_EQ(refresh(moved, each, damping_of(moved), 1e-3), Refreshed::rescaled);
  EXPECT_TRUE(basis.vectors.equal(copy.vectors));
  EXPECT_TRUE(basis.values.equal(copy.values));
}

TEST_F(RefreshTest, EstimatesTheErrorsOfADecomposition) {
  const auto factor = covariance(2, 48, at::kDouble);
  auto basis = basis_of(factor);
  basis.vectors.add_(at::randn_like(basis.vectors), 1e-3);
  const auto weights = at::rand({2, 48}, at::kDouble);
  const auto errors = eigen_errors(factor, basis.vectors, basis.values, weights);
  const auto q = basis.vectors, w = at::diag_embed(weights);
  const auto e = transposed(q).bmm(factor).bmm(q) - at::diag_embed(basis.values);
  const auto norm = [](const at::Tensor& m) { return m.square().sum({1, 2}).sqrt(); };
  EXPECT_TRUE(at::allclose(errors.off, norm(e), 0.4));
  EXPECT_TRUE(at::allclose(errors.weighted, norm(w.bmm(e).bmm(w)), 0.4));
  EXPECT_TRUE(at::allclose(errors.orthogonality, norm(transposed(q).bmm(q) - at::eye(48, at::kDouble)), 0.4));
}

TEST_F(RefreshTest, DampsAFactorByNoMoreThanTheLayersInverseDoes) {
  for (bool separable : {false, true})
    for (const Damping& damping : {Damping{.relative = 0.3}, Damping{.absolute = 0.01},
                                   Damping{.relative = 0.3, .curvature = at::full({}, 0.7, at::kDouble)}}) {
      const LayerShape shape{
          .kind = LayerKind::conv2d, .out = 6, .in = 8, .kernel = {3, 3}, .groups = 2, .separable = separable};
      std::vector<at::Tensor> factors, values;
      at::Tensor gamma = at::full({}, damping.absolute.value_or(damping.relative), at::kDouble);
      for (const auto& factor : shape.factors()) {
        factors.push_back(covariance(2, factor.side, at::kDouble) *
                          at::tensor({1.0, 5.0}, at::kDouble).view({2, 1, 1}));
        auto v = at::linalg_eigvalsh(factors.back());
        if (factor.role == FactorRole::offsets) v = v / v.sum(1, true);
        if (!damping.absolute && !damping.curvature.defined()) gamma = gamma * v.mean();
        values.push_back(v);
      }
      if (damping.curvature.defined()) gamma = gamma * damping.curvature;
      for (size_t f = 0; f < factors.size(); ++f) {
        auto least = gamma;
        for (size_t o = 0; o < factors.size(); ++o)
          if (o != f) least = least / values[o].max();
        if (shape.factors()[f].role == FactorRole::offsets) least = least * factors[f].diagonal(0, 1, 2).sum(1).min();
        const double delta = factor_damping(shape, factors, f, damping).item<double>();
        EXPECT_LE(delta, least.item<double>() * (1 + 1e-9)) << f;
        EXPECT_GE(delta, least.item<double>() / 20) << f;
      }
    }
}

TEST(MeasureDecompositionsTest, GivesAPointForEverySideAndLeavesTheUsersRandomNumbers) {
  torch::manual_seed(5);
  const auto expected = at::rand({3});
  for (auto method : {Method::eigen, Method::plain}) {
    torch::manual_seed(5);
    const auto costs = measure_decompositions(at::kFloat, method, {4, 8, 33}, 1);
    EXPECT_TRUE(at::rand({3}).equal(expected));
    EXPECT_EQ(costs.points.size(), 3U);
    EXPECT_EQ(costs.points.back().side, 33);
    costs.validate();
  }
  EXPECT_THROW(measure_decompositions(at::kFloat, Method::eigen, {8, 8}), BadRequest);
  EXPECT_THROW(measure_decompositions(at::kFloat, Method::eigen, {8}, 0), BadRequest);
}

}  // namespace spillway::kfac
