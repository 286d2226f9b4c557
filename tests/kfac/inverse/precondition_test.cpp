#include "kfac/inverse/precondition.h"

#include <gtest/gtest.h>

#include "kfac/inverse/truncated_eigenbasis.h"
#include "tests/kfac/factors/layer_cases.h"

namespace spillway::kfac {
namespace {

constexpr InverseForm kEigen{}, kOuter{Method::eigen, true}, kPlain{Method::plain}, kPi{Method::pi};
constexpr InverseForm kRankOne{Method::eigen, false, EigenRank::of(1)},
    kRankThree{Method::eigen, true, EigenRank::of(3)};

// Brings a basis up to date as a first decomposition does.
bool decompose_first(const FactorShape& shape, const at::Tensor& factor, const Eigenbasis& basis) {
  if (!shape.is_truncated()) return decompose(factor, basis);
  randomize(basis);
  return iterate_subspace(factor, basis);
}

// Returns the inverse of `factors` as one rank makes it. What truncated bases stand for takes the factors' place.
LayerInverse inverse_of(const LayerShape& shape, std::vector<at::Tensor>& factors, const Damping& damping) {
  auto inverse = LayerInverse::identity(shape, factors.front().options());
  const auto failed = at::zeros({}, at::kLong);
  for (size_t f = 0; f < factors.size(); ++f)
    if (shape.inverse.method != Method::eigen) {
      invert_factor(inverse, shape, factors, f, damping, failed);
    } else {
      const auto basis = inverse.basis(shape, f);
      EXPECT_TRUE(decompose_first(shape.factors()[f], factors[f], basis));
      if (shape.factors()[f].is_truncated()) factors[f] = reference::rebuilt(basis);
    }
  if (shape.inverse.precompute_outer) form_reciprocal(inverse, shape, damping);
  EXPECT_EQ(failed.item<int64_t>(), 0);
  return inverse;
}

void expect_close(const LayerGradient& v, const LayerGradient& expected, double tolerance) {
  EXPECT_LT(largest_difference(v.weight, expected.weight), tolerance * expected.weight.abs().max().item<double>());
  ASSERT_EQ(v.bias.defined(), expected.bias.defined());
  if (v.bias.defined()) {
    EXPECT_LT(largest_difference(v.bias, expected.bias), tolerance * expected.bias.abs().max().item<double>());
  }
}

struct PreconditionCase {
  LayerCase layer;
  InverseForm form;
  std::string name;
};
std::ostream& operator<<(std::ostream& out, const PreconditionCase& c) {
  return out << c.name;
}

std::vector<PreconditionCase> precondition_cases() {
  std::vector<PreconditionCase> all;
  for (const auto& layer : layer_cases())
    for (const auto& [form, name] : {std::pair(kEigen, "ByEigenbases"), std::pair(kOuter, "ByPrecomputedOuterProduct"),
                                     std::pair(kPlain, "ByPlainInverses"), std::pair(kPi, "ByPiInverses"),
                                     std::pair(kRankOne, "ByLeadingEigenvectors"),
                                     std::pair(kRankThree, "ByThreeEigenvectorsAndPrecomputedOuterProduct")})
      all.push_back({layer, form, layer.name + name});
  return all;
}

class PreconditionTest : public testing::TestWithParam<PreconditionCase> {};

// Dampings of every kind. The curvature is of the network.
std::vector<Damping> dampings() {
  return {{.relative = 0.3}, {.absolute = 0.01}, {.relative = 0.3, .curvature = at::full({}, 0.7, at::kDouble)}};
}

void expect_dense_solution(const PreconditionCase& c, ConvFactors form, const Damping& damping) {
  const LayerRun run(c.layer);
  run.loss.backward();
  auto shape = find_layers(*run.module, in_form(form)).layers.at(0).shape;
  shape.inverse = c.form;
  auto factors = naive_factors(run, c.layer, shape);
  const auto inverse = inverse_of(shape, factors, damping);
  const auto v = precondition(shape, run.gradient(), inverse, damping);
  expect_close(v, reference::natural_gradient(shape, run.gradient(), factors, damping), 1e-10);
}

}  // namespace

TEST_P(PreconditionTest, EqualsTheDenseKroneckerSolution) {
  for (const auto& damping : dampings()) expect_dense_solution(GetParam(), ConvFactors::full, damping);
}
TEST_P(PreconditionTest, EqualsTheDenseKroneckerSolutionWhenSeparable) {
  for (const auto& damping : dampings()) expect_dense_solution(GetParam(), ConvFactors::separable, damping);
}
TEST_P(PreconditionTest, EqualsTheDenseKroneckerSolutionInBlocks) {
  for (const auto& damping : dampings()) expect_dense_solution(GetParam(), ConvFactors::block, damping);
}
INSTANTIATE_TEST_SUITE_P(EveryKind, PreconditionTest, testing::ValuesIn(precondition_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(PreconditionEdgeTest, LeavesTheGradientOfALayerWithoutCurvature) {
  for (const auto& form : {kEigen, kOuter, kPlain, kPi})
    for (bool separable : {false, true})
      for (bool outputs_seen : {false, true})
        for (const Damping& damping : dampings()) {
          if (separable && outputs_seen) continue;  // with separable factors the bias has curvature of its own
          const LayerShape shape{
              .kind = LayerKind::conv1d, .out = 2, .in = 3, .kernel = {3}, .separable = separable, .inverse = form};
          std::vector<at::Tensor> factors;
          for (const auto& factor : shape.factors())
            factors.push_back(at::zeros({1, factor.side, factor.side}, at::kDouble));
          if (outputs_seen) factors.back()[0].fill_diagonal_(3);
          const LayerGradient gradient{at::randn({2, 3, 3}, at::kDouble), at::randn({2}, at::kDouble)};
          expect_close(precondition(shape, gradient, inverse_of(shape, factors, damping), damping), gradient, 1e-15);
          const auto unseen = LayerInverse::identity(shape, at::kDouble);
          if (form.method != Method::eigen || form.precompute_outer) {
            expect_close(precondition(shape, gradient, unseen, damping), gradient, 1e-15);
          }
        }
}

TEST(PreconditionEdgeTest, StaysFiniteWhereOnlyTheBiasHasCurvature) {
  for (double of_network : {0.0, 0.7}) {
    const LayerShape shape{.kind = LayerKind::conv1d, .out = 2, .in = 3, .kernel = {3}, .separable = true};
    std::vector<at::Tensor> factors;
    for (const auto& factor : shape.factors()) factors.push_back(at::zeros({1, factor.side, factor.side}, at::kDouble));
    factors.back()[0][0][0].fill_(3);  // one of the outputs
    const LayerGradient gradient{at::randn({2, 3, 3}, at::kDouble), at::ones({2}, at::kDouble)};
    const Damping damping{.relative = 0.3, .curvature = at::full({}, of_network, at::kDouble)};
    const auto v = precondition(shape, gradient, inverse_of(shape, factors, damping), damping);
    EXPECT_TRUE(v.weight.allclose(gradient.weight)) << "no curvature";
    EXPECT_TRUE(v.bias.allclose(at::tensor({1 / (3 + 0.45), 1 / 0.45}, at::kDouble))) << v.bias;
  }
}

TEST(PreconditionEdgeTest, StaysFiniteAtTinyDampingOfSingularFactorsInSinglePrecision) {
  torch::manual_seed(2);
  const auto rows = at::randn({3, 8});  // rank 3 of 8: five eigenvalues are rounding errors of either sign
  std::vector<at::Tensor> factors{rows.t().mm(rows).unsqueeze(0), rows.t().mm(rows).unsqueeze(0)};
  const LayerGradient gradient{rows.t().mm(rows), {}};
  for (const auto& form : {kEigen, kOuter, kPlain, kPi}) {
    const LayerShape shape{.out = 8, .in = 8, .bias = false, .inverse = form};
    for (double gamma : {1e-3, 1e-8, 1e-20, 1e-30}) {
      const Damping damping{.absolute = gamma};
      auto inverse = LayerInverse::identity(shape, at::kFloat);
      const auto failed = at::zeros({}, at::kLong);  // a Cholesky may fail; the last inverse then stays
      if (form.method == Method::eigen)
        inverse = inverse_of(shape, factors, damping);
      else
        for (size_t f = 0; f < 2; ++f) invert_factor(inverse, shape, factors, f, damping, failed);
      const auto v = precondition(shape, gradient, inverse, damping);
      EXPECT_TRUE(at::isfinite(v.weight).all().item<bool>()) << gamma;
    }
  }
}

TEST(InverseTest, KeepsTheLastOfAGroupWhoseCholeskyFailsAndCounts) {
  for (const auto& form : {kPlain, kPi}) {
    const LayerShape shape{
        .kind = LayerKind::conv1d, .out = 4, .in = 4, .kernel = {1}, .groups = 2, .bias = false, .inverse = form};
    std::vector<at::Tensor> factors{at::eye(2, at::kDouble).repeat({2, 1, 1}),
                                    at::eye(2, at::kDouble).repeat({2, 1, 1})};
    const Damping damping{.absolute = 0.5};
    const auto inverse = inverse_of(shape, factors, damping);
    const auto before = inverse.matrix(shape, 0).clone();
    factors[0][1].fill_diagonal_(-10).select(0, 0).fill_(40);  // indefinite, while the other group is positive definite
    factors[0][0].mul_(3);
    const auto failed = at::zeros({}, at::kLong);
    invert_factor(inverse, shape, factors, 0, damping, failed);
    EXPECT_EQ(failed.item<int64_t>(), 1);
    EXPECT_TRUE(inverse.matrix(shape, 0)[1].equal(before[1]));
    EXPECT_FALSE(inverse.matrix(shape, 0)[0].equal(before[0]));
  }
}

TEST(InverseTest, KeepsTheLastWhereAPivotIsExactlyZero) {
  const LayerShape shape{.out = 2, .in = 2, .bias = false, .inverse = kPlain};
  const std::vector<at::Tensor> factors{at::tensor({40.0, 0.0, 0.0, -0.5}, at::kDouble).view({1, 2, 2}),
                                        at::eye(2, at::kDouble).unsqueeze(0)};
  const auto inverse = LayerInverse::identity(shape, at::kDouble);
  const auto failed = at::zeros({}, at::kLong);
  invert_factor(inverse, shape, factors, 0, {.absolute = 0.5}, failed);
  EXPECT_EQ(failed.item<int64_t>(), 1);
  EXPECT_TRUE(inverse.matrix(shape, 0)[0].equal(at::eye(2, at::kDouble)));
}

TEST(InverseTest, TakesRayleighQuotientsOfTheLastEigenvectorsWhereADecompositionFails) {
  const LayerShape shape{.out = 3, .in = 3, .bias = false, .inverse = kOuter};
  auto inverse = LayerInverse::identity(shape, at::kDouble);
  const auto bad = at::full({1, 3, 3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  EXPECT_FALSE(decompose(bad, inverse.basis(shape, 0)));
  EXPECT_TRUE(inverse.matrix(shape, 0)[0].equal(at::eye(3, at::kDouble))) << "the last eigenvectors";
  const auto factor = at::tensor({2.0, 1.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.0, -1.0}, at::kDouble).view({1, 3, 3});
  rescale_fresh_values(factor, inverse, shape, 0);
  EXPECT_TRUE(inverse.fresh_values.at(0).equal(at::tensor({2.0, 3.0, 0.0}, at::kDouble).unsqueeze(0)));
}

TEST(InverseTest, KeepsTheTraceInTheRayleighQuotientsOfATruncatedBasis) {
  const LayerShape shape{.out = 9, .in = 9, .bias = false, .inverse = kRankThree};
  auto inverse = LayerInverse::identity(shape, at::kDouble);
  const auto factor = at::arange(1, 10, at::kDouble).diag().unsqueeze(0);
  rescale_fresh_values(factor, inverse, shape, 0);
  EXPECT_TRUE(inverse.fresh_values.at(0).equal(at::tensor({1.0, 2.0, 3.0, 6.5}, at::kDouble).unsqueeze(0)));
}

TEST(InverseTest, HoldsExactlyTheTensorsOfTheFormula) {
  for (const auto& form : {kEigen, kOuter, kPlain, kPi, kRankOne, kRankThree})
    for (bool separable : {false, true}) {
      const LayerShape shape{.kind = LayerKind::conv2d,
                             .out = 6,
                             .in = 4,
                             .kernel = {3, 3},
                             .groups = 2,
                             .separable = separable,
                             .inverse = form};
      int64_t elements = 0;
      for (const auto& tensor : LayerInverse::identity(shape, at::kFloat).held) elements += tensor.numel();
      EXPECT_EQ(elements, eigenbasis_elements(shape));
    }
}

}  // namespace spillway::kfac
