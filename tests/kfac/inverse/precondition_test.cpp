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
  randomize({basis});
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

LayerGradient preconditioned(const LayerShape& shape, const LayerGradient& gradient, const LayerInverse& inverse,
                             const Damping& damping) {
  return precondition(shape, gradient, inverse, scales_of(shape, inverse, damping));
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
  const auto v = preconditioned(shape, run.gradient(), inverse, damping);
  expect_close(v, reference::natural_gradient(shape, run.gradient(), factors, damping), 1e-10);
}

// Returns symmetric positive definite factors of the layer.
std::vector<at::Tensor> random_factors(const LayerShape& shape) {
  std::vector<at::Tensor> factors;
  for (const auto& factor : shape.factors()) {
    const auto rows = at::randn({factor.count, factor.side, factor.side}, at::kDouble);
    factors.push_back(rows.bmm(rows.transpose(1, 2)));
  }
  return factors;
}

LayerGradient random_gradient(const LayerShape& shape) {
  std::vector<int64_t> sizes{shape.out, shape.in / shape.groups};
  sizes.insert(sizes.end(), shape.kernel.begin(), shape.kernel.end());
  return {at::randn(sizes, at::kDouble), shape.bias ? at::randn({shape.out}, at::kDouble) : at::Tensor()};
}

// Preconditions layers of one shape by themselves and side by side.
void expect_the_same_side_by_side(const LayerShape& shape, Damping damping) {
  constexpr int64_t kLayers = 3;
  const auto curvature = damping.curvature;
  std::vector<LayerGradient> alone;
  std::vector<at::Tensor> weights, biases, curvatures;
  std::vector<std::vector<at::Tensor>> held(inverse_tensors(shape).size());
  for (int64_t k = 0; k < kLayers; ++k) {
    if (curvature.defined()) curvatures.push_back(damping.curvature = curvature * (k + 1));
    auto factors = random_factors(shape);
    const auto inverse = inverse_of(shape, factors, damping);
    const auto gradient = random_gradient(shape);
    alone.push_back(preconditioned(shape, gradient, inverse, damping));
    weights.push_back(gradient.weight);
    if (shape.bias) biases.push_back(gradient.bias);
    for (size_t t = 0; t < held.size(); ++t) held[t].push_back(inverse.held[t]);
  }
  if (curvature.defined()) damping.curvature = at::stack(curvatures);
  LayerInverse together;
  for (const auto& tensors : held) together.held.push_back(at::cat(tensors));
  const auto v = preconditioned(side_by_side(shape, kLayers),
                                {at::cat(weights), shape.bias ? at::cat(biases) : at::Tensor()}, together, damping);
  for (int64_t k = 0; k < kLayers; ++k)
    expect_close({v.weight.chunk(kLayers)[k], shape.bias ? v.bias.chunk(kLayers)[k] : at::Tensor()}, alone[k], 1e-12);
}

}  // namespace

TEST_P(PreconditionTest, GivesLayersSideBySideWhatTheyGetAlone) {
  const LayerRun run(GetParam().layer);
  for (const auto form : {ConvFactors::full, ConvFactors::separable, ConvFactors::block})
    for (const auto& damping : dampings()) {
      auto shape = find_layers(*run.module, in_form(form)).layers.at(0).shape;
      shape.inverse = GetParam().form;
      expect_the_same_side_by_side(shape, damping);
    }
}
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
          expect_close(preconditioned(shape, gradient, inverse_of(shape, factors, damping), damping), gradient, 1e-15);
          const auto unseen = LayerInverse::identity(shape, at::kDouble);
          if (form.method != Method::eigen || form.precompute_outer) {
            expect_close(preconditioned(shape, gradient, unseen, damping), gradient, 1e-15);
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
    const auto v = preconditioned(shape, gradient, inverse_of(shape, factors, damping), damping);
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
      const auto v = preconditioned(shape, gradient, inverse, damping);
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
