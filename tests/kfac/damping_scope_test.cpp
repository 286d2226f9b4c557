// Tests of the damping that looks at the whole network.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kfac/rank_training.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

const double kNoClip = std::numeric_limits<double>::infinity();

KfacOptions every_step() {
  return {.factor_interval = 1, .inverse_interval = 1, .decay = 0, .relative_damping = 0.2, .kl_clip = kNoClip};
}

// Returns the gradients that a step of K-FAC makes of `scale` times the loss.
std::vector<at::Tensor> step(Kfac& kfac, torch::nn::Sequential model, const at::Tensor& x, double scale) {
  model->zero_grad();
  backward(kfac, mean_loss(model, x) * scale, x.size(0));
  kfac.step();
  return gradients(*model);
}

double mean_curvature(const Kfac& kfac, size_t i) {
  double product = 1;
  for (size_t f = 0; f < 2; ++f) product *= kfac.state().factor(i, f).diagonal(0, -2, -1).mean().item<double>();
  return product;
}

// Expects the two parameters of layer `i` to be as with an absolute damping.
void expect_damping(const std::vector<at::Tensor>& gradients, size_t i, double damping, const at::Tensor& x,
                    double scale) {
  auto model = small_mlp();
  auto options = every_step();
  options.damping = damping;
  Kfac kfac(*model, options);
  const auto expected = step(kfac, model, x, scale);
  for (size_t p : {2 * i, 2 * i + 1}) EXPECT_TRUE(at::allclose(gradients[p], expected[p], 1e-9)) << "parameter " << p;
}

TEST(DampingScopeTest, DampsALayerByTheGeometricMeanOfItsCurvatureAndTheLargest) {
  const auto x = at::randn({8, 4}, at::kDouble);
  auto model = small_mlp();
  Kfac kfac(*model, every_step());
  const auto v = step(kfac, model, x, 1);
  const double m[] = {mean_curvature(kfac, 0), mean_curvature(kfac, 1)};
  ASSERT_GT(std::abs(std::log(m[0] / m[1])), 0.1) << "equal curvatures test nothing";
  for (size_t i : {0, 1}) expect_damping(v, i, 0.2 * std::sqrt(m[i] * std::max(m[0], m[1])), x, 1);
}

TEST(DampingScopeTest, KeepsTheLargestCurvatureWhenTheLossFalls) {
  const auto x = at::randn({8, 4}, at::kDouble);
  auto model = small_mlp();
  Kfac kfac(*model, every_step());
  step(kfac, model, x, 1);
  const auto first = kfac.state().largest_curvature().clone();
  const auto v = step(kfac, model, x, 0.1);
  EXPECT_TRUE(kfac.state().largest_curvature().equal(first));
  EXPECT_LT(mean_curvature(kfac, 0), 0.1 * first[0].item<double>());
  for (int64_t i : {0, 1})
    expect_damping(v, static_cast<size_t>(i), 0.2 * (first[i] * first.max()).sqrt().item<double>(), x, 0.1);
  step(kfac, model, x, 2);
  EXPECT_TRUE(kfac.state().largest_curvature().allclose(4 * first, 1e-9));
}

TEST(DampingScopeTest, ServesEveryMethod) {
  const auto x = at::randn({8, 4}, at::kDouble);
  for (auto method : {Method::plain, Method::pi}) {
    auto options = every_step();
    options.method = method;
    auto model = small_mlp(), other = small_mlp();
    Kfac kfac(*model, options);
    const auto v = step(kfac, model, x, 1);
    options.relative_damping = std::nullopt;
    options.damping =
        0.2 * (kfac.state().largest_curvature()[0] * kfac.state().largest_curvature().max()).sqrt().item<double>();
    Kfac absolute(*other, options);
    EXPECT_TRUE(at::allclose(v[0], step(absolute, other, x, 1)[0], 1e-9)) << name(method);
  }
}

TEST(DampingScopeTest, LeavesALayersOwnDampingToTheOtherScope) {
  const auto x = at::randn({8, 4}, at::kDouble);
  auto model = small_mlp();
  auto options = every_step();
  options.damping_scope = DampingScope::layer;
  Kfac kfac(*model, options);
  const auto v = step(kfac, model, x, 1);
  EXPECT_FALSE(kfac.state().largest_curvature().defined());
  for (size_t i : {0, 1}) expect_damping(v, i, 0.2 * mean_curvature(kfac, i), x, 1);
}

TEST(DampingScopeTest, KnowsTheSameCurvaturesOnEveryRankWhoeverHoldsTheFactors) {
  for (auto form : {ConvFactors::full, ConvFactors::separable}) {
    const auto reference = train_on(3, options_for(Strategy::hybrid, 1, form))[0].largest_curvature;
    EXPECT_TRUE(reference.gt(0).all().item<bool>());
    for (const auto& options : exact_strategies(3, form))
      for (const auto& rank : train_on(3, options))
        EXPECT_TRUE(rank.largest_curvature.equal(reference)) << describe(options, 3);
  }
}

}  // namespace
}  // namespace spillway::kfac
