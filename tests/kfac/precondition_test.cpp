#include "kfac/precondition.h"

#include <gtest/gtest.h>

#include "tests/kfac/layer_cases.h"

namespace spillway::kfac {
namespace {

class PreconditionTest : public testing::TestWithParam<LayerCase> {};

void expect_dense_solution(const LayerCase& layer_case, ConvFactors form, const Damping& damping) {
  const LayerRun run(layer_case);
  run.loss.backward();
  const auto shape = find_layers(*run.module, {.conv_factors = form}).layers.at(0).shape;
  const auto factors = naive_factors(run, layer_case, shape);
  std::vector<Eigenbasis> bases;
  for (const auto& factor : factors) {
    bases.push_back(Eigenbasis::identity(factor.size(0), factor.size(1), factor.options()));
    ASSERT_TRUE(decompose(factor, bases.back()));
  }
  const auto v = precondition(shape, run.gradient(), bases, damping);
  const auto expected = reference::natural_gradient(shape, run.gradient(), factors, damping);
  EXPECT_LT(largest_difference(v.weight, expected.weight), 1e-10 * expected.weight.abs().max().item<double>());
  ASSERT_EQ(v.bias.defined(), expected.bias.defined());
  if (v.bias.defined())
    EXPECT_LT(largest_difference(v.bias, expected.bias), 1e-10 * expected.bias.abs().max().item<double>());
}

}  // namespace

TEST_P(PreconditionTest, EqualsTheDenseKroneckerSolution) {
  expect_dense_solution(GetParam(), ConvFactors::full, {.relative = 0.3});
  expect_dense_solution(GetParam(), ConvFactors::full, {.absolute = 0.01});
}
TEST_P(PreconditionTest, EqualsTheDenseKroneckerSolutionWhenSeparable) {
  expect_dense_solution(GetParam(), ConvFactors::separable, {.relative = 0.3});
  expect_dense_solution(GetParam(), ConvFactors::separable, {.absolute = 0.01});
}
INSTANTIATE_TEST_SUITE_P(EveryKind, PreconditionTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(PreconditionEdgeTest, LeavesTheGradientOfALayerWithoutCurvature) {
  for (bool separable : {false, true})
    for (const Damping& damping : {Damping{.relative = 0.3}, Damping{.absolute = 0.01}}) {
      const LayerShape shape{.kind = LayerKind::conv1d, .out = 2, .in = 3, .kernel = {3}, .separable = separable};
      std::vector<Eigenbasis> bases;
      for (const auto& factor : shape.factors()) bases.push_back(Eigenbasis::identity(1, factor.side, at::kDouble));
      const LayerGradient gradient{at::randn({2, 3, 3}, at::kDouble), at::randn({2}, at::kDouble)};
      const auto v = precondition(shape, gradient, bases, damping);
      EXPECT_TRUE(v.weight.equal(gradient.weight));
      EXPECT_TRUE(v.bias.equal(gradient.bias));
    }
}

}  // namespace spillway::kfac
