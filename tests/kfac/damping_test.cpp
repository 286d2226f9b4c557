// Tests of dampings that change with the steps, by a schedule or by the loss.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "kfac/kfac.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

const double kNoClip = std::numeric_limits<double>::infinity();

TEST(DampingTest, ChangesTheDampingWithTheSteps) {
  const auto x = at::randn({8, 4}, at::kDouble);
  const auto gradient = [&](const StepSchedule& damping, bool outer) {
    auto model = small_mlp();
    Kfac kfac(*model, {.precompute_outer = outer, .damping = damping, .kl_clip = kNoClip});
    for (int i = 0; i < 3; ++i) {
      model->zero_grad();
      backward(kfac, mean_loss(model, x), 8);
      kfac.step();
    }
    return gradients(*model)[0];
  };
  EXPECT_TRUE(gradient(decayed(0.1, {{2, 0.1}}), false).equal(gradient(0.1 * 0.1, false)));
  EXPECT_TRUE(gradient(decayed(0.1, {{2, 0.1}}), true).equal(gradient(0.1, true))) << "fixed by the decomposition";
  auto model = small_mlp();
  Kfac kfac(*model, {.burn_in = 0, .relative_damping = decayed(0.3, {{1, 0}})});
  backward(kfac, mean_loss(model, x), 8);
  EXPECT_NO_THROW(kfac.step());
  EXPECT_THROW(kfac.step(), BadRequest);
}

TEST(DampingTest, PredictsTheReductionOfAQuadraticLoss) {
  // The loss has one Linear layer, squared error, and residuals of one size. Up to the damping, the model with G ⊗ A is
  // the loss itself.
  torch::manual_seed(6);
  nn::Linear linear(nn::LinearOptions(3, 1).bias(false));
  linear->to(at::kDouble);
  const auto x = at::randn({16, 3}, at::kDouble);
  const auto y = linear->forward(x).detach() + at::randn({16, 1}, at::kDouble).sign();
  const auto loss_of = [&] { return (linear->forward(x) - y).pow(2).mean() / 2; };
  const double lr = 0.05;
  Kfac kfac(*linear, {.lr = lr, .damping = 1e-9, .kl_clip = kNoClip});
  const auto before = loss_of();
  backward(kfac, before, 16);
  kfac.step();
  {
    at::NoGradGuard no_grad;
    linear->weight.sub_(linear->weight.grad(), lr);
  }
  EXPECT_NEAR(kfac.adapt_damping(before.item<double>(), loss_of().item<double>()), 1, 1e-6);
  EXPECT_DOUBLE_EQ(kfac.counters().damping_scale, 0.95) << "trusted: one step's worth less damping";
  EXPECT_THROW(kfac.adapt_damping(1, 0), c10::Error) << "no step since";
}

TEST(DampingTest, DampsMoreWhereTheLossDoesNotFallAndGoesOnFromThereAfterAResume) {
  const auto x = at::randn({8, 4}, at::kDouble);
  const auto step = [&](nn::Sequential model, Kfac& kfac) {
    model->zero_grad();
    backward(kfac, mean_loss(model, x), 8);
    kfac.step();
  };
  auto model = small_mlp(), other = small_mlp();
  Kfac adapted(*model, {.damping = 0.01, .kl_clip = kNoClip}), expected(*other, {.damping = 0.01 / 0.95 / 0.95});
  for (int i = 0; i < 2; ++i) step(model, adapted);
  EXPECT_LT(adapted.adapt_damping(1, 2), 0);
  EXPECT_DOUBLE_EQ(adapted.counters().damping_scale, 1 / 0.95 / 0.95);
  Kfac resumed(*other, {.damping = 0.01, .kl_clip = kNoClip});
  resumed.state().resume(adapted.counters());
  EXPECT_THROW(resumed.adapt_damping(1, 0), c10::Error);
  for (size_t i = 0; i < 2; ++i) {
    for (size_t f = 0; f < 2; ++f) resumed.state().held_factors(i)[f].copy_(adapted.state().held_factors(i)[f]);
    for (size_t t = 0; t < 4; ++t) resumed.state().inverse(i)[t].copy_(adapted.state().inverse(i)[t]);
  }
  step(model, adapted);
  step(other, resumed);
  EXPECT_TRUE(gradients(*model)[0].equal(gradients(*other)[0]));
  EXPECT_TRUE(std::isnan(adapted.adapt_damping(1, std::nan(""))));
  EXPECT_DOUBLE_EQ(adapted.counters().damping_scale, 1 / 0.95 / 0.95 / 0.95) << "a loss that is no number";
}

TEST(DampingTest, RecoversFromADampingThatIsFarTooLargeByAdaptingIt) {
  torch::manual_seed(7);
  const auto x = at::randn({128, 8}) * at::logspace(-1.5, 0.5, 8),
             y = (x / at::logspace(-1.5, 0.5, 8)).sin().sum(1, true);
  const auto train = [&](bool adapt) {
    torch::manual_seed(11);
    nn::Sequential model(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 1));
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.5));
    Kfac kfac(*model, {.lr = 0.5, .relative_damping = 1e3, .kl_clip = 1e-2});
    at::Tensor loss;
    for (int i = 0; i < 150; ++i) {
      sgd.zero_grad();
      loss = (model->forward(x) - y).pow(2).mean();
      kfac.watch(loss, x.size(0));
      loss.backward();
      kfac.step();
      sgd.step();
      if (!adapt || i % 3 != 2) continue;
      at::NoGradGuard no_grad;
      kfac.adapt_damping(loss.item<double>(), (model->forward(x) - y).pow(2).mean().item<double>());
    }
    RecordProperty(adapt ? "damping_scale" : "fixed", std::to_string(kfac.counters().damping_scale));
    return loss.item<double>();
  };
  const double fixed = train(false), adapted = train(true);
  EXPECT_LT(adapted, 0.7 * fixed) << fixed;
}

}  // namespace
}  // namespace spillway::kfac
