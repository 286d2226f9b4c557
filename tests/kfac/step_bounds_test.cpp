#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "kfac/kfac.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

const double kNoClip = std::numeric_limits<double>::infinity();

TEST(StepBoundsTest, ClipsTheStepToAShareOfTheWeights) {
  const auto x = at::randn({8, 4}, at::kDouble);
  const auto after = [&](std::optional<double> norm_clip, double kl_clip = kNoClip) {
    auto model = small_mlp();
    Kfac kfac(*model, {.lr = 0.1, .kl_clip = kl_clip, .norm_clip = norm_clip});
    backward(kfac, mean_loss(model, x), 8);
    kfac.step();
    return gradients(*model);
  };
  const auto model = small_mlp();
  const auto free = after(std::nullopt);
  double step = 0, weights = 0;
  for (const auto& parameter : model->named_parameters())
    if (parameter.key().ends_with("weight")) weights += parameter.value().square().sum().item<double>();
  for (size_t i = 0; i < free.size(); i += 2) step += free[i].square().sum().item<double>();
  const double share = 0.1 * std::sqrt(step / weights);  // of the step that nothing bounds
  const auto half = after(share / 2), loose = after(share * 2), both = after(share / 2, 1e-12),
             kappa = after({}, 1e-12);
  for (size_t i = 0; i < free.size(); ++i) {
    EXPECT_TRUE(at::allclose(half[i], free[i] / 2, 1e-10)) << i;
    EXPECT_TRUE(loose[i].equal(free[i])) << i;
    EXPECT_TRUE(both[i].equal(kappa[i])) << "the narrower bound holds, " << i;
  }
}

TEST(StepBoundsTest, StepsAreBoundedByDefaultWhereNoTrustRegionIsGiven) {
  EXPECT_EQ(KfacOptions{}.norm_clip_in_use(), 0.02);
  EXPECT_EQ(KfacOptions{}.at(0).kl_clip, kNoClip);
  EXPECT_EQ((KfacOptions{.kl_clip = 1e-3}.norm_clip_in_use()), kNoClip);
  EXPECT_EQ((KfacOptions{.convention = Convention::kaisa}.norm_clip_in_use()), kNoClip);
  EXPECT_EQ((KfacOptions{.kl_clip = 1e-3, .norm_clip = 0.5}.norm_clip_in_use()), 0.5);
}

TEST(StepBoundsTest, WeightsOfZeroAreNotBounded) {
  auto model = small_mlp();
  {
    at::NoGradGuard no_grad;
    for (const auto& parameter : model->named_parameters())
      parameter.value().fill_(parameter.key().ends_with("weight") ? 0 : 1);
  }
  Kfac kfac(*model, {.lr = 0.1, .kl_clip = kNoClip, .norm_clip = 1e-9});
  backward(kfac, mean_loss(model, at::randn({8, 4}, at::kDouble)), 8);
  kfac.step();
  for (const at::Tensor& gradient : gradients(*model)) EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  EXPECT_GT(gradients(*model).back().norm().item<double>(), 0);
}

TEST(StepBoundsTest, ClipsTheStepToTheTrustRegion) {
  const auto x = at::randn({8, 4}, at::kDouble);
  const auto after = [&](double kl_clip, double lr) {
    auto model = small_mlp();
    Kfac kfac(*model, {.lr = lr, .kl_clip = kl_clip});
    backward(kfac, mean_loss(model, x), 8);
    const auto plain = gradients(*model);
    kfac.step();
    return std::make_pair(plain, gradients(*model));
  };
  const auto [plain, free] = after(kNoClip, 0.1);
  double quadratic = 0;  // the model has two layers, each with a weight and a bias
  for (size_t layer = 0; layer < 4; layer += 2)
    quadratic +=
        std::abs(((plain[layer] * free[layer]).sum() + (plain[layer + 1] * free[layer + 1]).sum()).item<double>());
  const double nu = std::sqrt(1e-4 / (0.1 * 0.1 * quadratic));
  ASSERT_LT(nu, 1);
  const auto clipped = after(1e-4, 0.1).second, loose = after(1e9, 0.1).second;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::allclose(clipped[i], free[i] * nu, 1e-10));
    EXPECT_TRUE(loose[i].equal(free[i]));
  }
}

TEST(StepBoundsTest, ShrinksTheTrustRegionWithTheSteps) {
  const auto x = at::randn({8, 4}, at::kDouble);
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 1, .decay = 0, .kl_clip = harmonic(1e-6, 2)});
  std::vector<at::Tensor> steps;
  for (int i = 0; i < 7; ++i) {  // the weights stay, so only κ changes from step to step
    model->zero_grad();
    backward(kfac, mean_loss(model, x), 8);
    kfac.step();
    steps.push_back(gradients(*model)[0]);
  }
  EXPECT_TRUE(at::allclose(steps[6] * 2, steps[0], 1e-9)) << "kappa_6 = kappa / 4";
}

}  // namespace
}  // namespace spillway::kfac
