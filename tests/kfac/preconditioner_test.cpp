#include "kfac/preconditioner.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/kfac/layer_cases.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

const double kNoClip = std::numeric_limits<double>::infinity();

nn::Sequential small_mlp(at::ScalarType dtype = at::kDouble, uint64_t seed = 0) {
  torch::manual_seed(seed);
  nn::Sequential model(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 3));
  model->to(dtype);
  return model;
}

at::Tensor mean_loss(nn::Sequential model, const at::Tensor& x) {
  return model->forward(x).pow(2).sum(1).mean();
}

std::vector<at::Tensor> gradients(const nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

void backward(Kfac& kfac, const at::Tensor& loss, int64_t batch) {
  kfac.watch(loss, batch);
  loss.backward();
}

class KfacLayerTest : public testing::TestWithParam<LayerCase> {};

}  // namespace

TEST_P(KfacLayerTest, RewritesTheGradientAsTheDenseOracleDoes) {
  for (auto form : {ConvFactors::full, ConvFactors::separable}) {
    const LayerRun run(GetParam());
    Kfac kfac(*run.module, {.kl_clip = kNoClip, .conv_factors = form});
    backward(kfac, run.loss, run.input.size(0));
    const auto& shape = kfac.layers().at(0).shape;
    const auto expected =
        reference::natural_gradient(shape, run.gradient(), naive_factors(run, GetParam(), shape), {.relative = 0.3});
    kfac.step();
    const auto v = run.gradient();
    EXPECT_LT(largest_difference(v.weight, expected.weight), 1e-9 * expected.weight.abs().max().item<double>());
    if (shape.bias) {
      EXPECT_LT(largest_difference(v.bias, expected.bias), 1e-9 * expected.bias.abs().max().item<double>());
    }
  }
}
INSTANTIATE_TEST_SUITE_P(EveryKind, KfacLayerTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(KfacTest, CountsTheUsesOfAReusedLayerAsFurtherPositions) {
  torch::manual_seed(1);
  nn::Linear linear(3, 3);
  linear->to(at::kDouble);
  const auto x = at::randn({4, 3}, at::kDouble);
  const auto first = linear->forward(x).tanh(), second = linear->forward(first);
  first.retain_grad();
  second.retain_grad();
  Kfac kfac(*linear);
  auto pre = linear->forward(x);
  pre.retain_grad();
  auto hidden = pre.tanh();
  auto out = linear->forward(hidden);
  out.retain_grad();
  backward(kfac, out.pow(2).sum(1).mean(), 4);
  kfac.step();
  const auto ones = at::ones({8, 1}, at::kDouble);
  const auto rows = at::cat({at::cat({x, hidden}), ones}, 1), g = at::cat({pre.grad(), out.grad()});
  EXPECT_LT(largest_difference(kfac.factors(0)[0][0], rows.t().mm(rows) / 8), 1e-13);
  EXPECT_LT(largest_difference(kfac.factors(0)[1][0], 4 * g.t().mm(g)), 1e-13);
}

TEST(KfacTest, CountsLeadingDimensionsOfLinearAsPositionsOfASample) {
  torch::manual_seed(1);
  nn::Linear linear(3, 2);
  linear->to(at::kDouble);
  const auto x = at::randn({4, 5, 3}, at::kDouble);
  auto y = linear->forward(x);
  y.retain_grad();
  Kfac kfac(*linear);
  backward(kfac, y.pow(2).sum({1, 2}).mean(), 4);
  kfac.step();
  const auto g = y.grad().reshape({20, 2});
  EXPECT_LT(largest_difference(kfac.factors(0)[1][0], 4 * g.t().mm(g)), 1e-13);
}

TEST(KfacTest, NamesTheKindOfTheComingStep) {
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 2, .inverse_interval = 3, .burn_in = 2});
  std::vector<std::string> kinds;
  const auto x = at::randn({4, 4}, at::kDouble);
  for (int i = 0; i < 8; ++i) {
    model->zero_grad();
    kinds.emplace_back(kfac.kind());
    backward(kfac, mean_loss(model, x), 4);
    kfac.step();
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"factor+decompose", "factor", "factor", "decompose", "factor", "plain",
                                             "factor+decompose", "plain"}));
  EXPECT_EQ(kfac.counters().steps, 8);
  EXPECT_EQ(kfac.counters().factor_updates, 5);
  EXPECT_EQ(kfac.counters().decompositions, 3);
}

TEST(KfacTest, AsksToBeWatchedInAFactorStep) {
  auto model = small_mlp();
  Kfac kfac(*model);
  mean_loss(model, at::randn({4, 4}, at::kDouble)).backward();
  EXPECT_THROW(kfac.step(), c10::Error);
  EXPECT_THROW(kfac.watch(mean_loss(model, at::randn({4, 4}, at::kDouble)), 0), c10::Error);
}

TEST(KfacTest, ClipsTheStepToTheTrustRegion) {
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
  double quadratic = 0;  // the model has two layers: weight and bias of each
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

TEST(KfacTest, ShrinksTheTrustRegionWithTheSteps) {
  const auto x = at::randn({8, 4}, at::kDouble);
  auto model = small_mlp();
  Kfac kfac(*model, {.inverse_interval = 1, .decay = 0, .kl_clip = harmonic(1e-6, 2)});
  std::vector<at::Tensor> steps;
  for (int i = 0; i < 7; ++i) {  // nothing is learnt: every step would be the first but for κ
    model->zero_grad();
    backward(kfac, mean_loss(model, x), 8);
    kfac.step();
    steps.push_back(gradients(*model)[0]);
  }
  EXPECT_TRUE(at::allclose(steps[6] * 2, steps[0], 1e-9)) << "kappa_6 = kappa / 4";
}

TEST(KfacTest, LeavesAZeroGradientZero) {
  auto model = small_mlp();
  Kfac kfac(*model);
  backward(kfac, mean_loss(model, at::randn({4, 4}, at::kDouble)) * 0, 4);
  kfac.step();
  for (const auto& gradient : gradients(*model)) EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
}

TEST(KfacTest, NeverAddsTheDampingToTheRunningAverages) {
  const auto x = at::randn({4, 4}, at::kDouble);
  std::vector<std::vector<at::Tensor>> factors;
  for (double damping : {0.01, 1000.0}) {
    auto model = small_mlp();
    Kfac kfac(*model, {.inverse_interval = 1, .damping = damping});
    for (int i = 0; i < 3; ++i) {
      model->zero_grad();
      backward(kfac, mean_loss(model, x), 4);
      kfac.step();
    }
    factors.push_back({kfac.factors(0)[0].clone(), kfac.factors(0)[1].clone(), kfac.factors(1)[0].clone()});
  }
  for (size_t i = 0; i < factors[0].size(); ++i) EXPECT_TRUE(factors[0][i].equal(factors[1][i]));
}

TEST(KfacTest, KeepsTheRunningAverageAndCountsWhenABackwardOverflows) {
  auto model = small_mlp();
  Kfac kfac(*model);
  const auto x = at::randn({4, 4}, at::kDouble);
  backward(kfac, mean_loss(model, x), 4);
  kfac.step();
  const auto before = kfac.factors(1)[1].clone();
  model->zero_grad();
  backward(kfac, mean_loss(model, x) * std::numeric_limits<double>::infinity(), 4);
  kfac.step();
  EXPECT_TRUE(kfac.factors(1)[1].equal(before));
  EXPECT_EQ(kfac.counters().dropped_factors, 2) << "the two G; both A were finite";
}

TEST(KfacTest, ForgetsAWatchedStepThatIsSkipped) {
  auto model = small_mlp();
  Kfac kfac(*model);
  backward(kfac, mean_loss(model, at::randn({4, 4}, at::kDouble)), 4);
  EXPECT_GT(kfac.state_bytes().staged, 0);
  kfac.discard();
  EXPECT_EQ(kfac.state_bytes().staged, 0);
  EXPECT_THROW(kfac.step(), c10::Error);
}

TEST(KfacTest, HoldsExactlyTheBytesOfTheFormula) {
  for (auto dtype : {at::kFloat, at::kDouble}) {
    nn::Sequential model(nn::Conv3d(2, 4, 3), nn::Conv3d(nn::Conv3dOptions(4, 4, 3).groups(2)), nn::Flatten(),
                         nn::Linear(4, 3));
    model->to(dtype);
    Kfac kfac(*model, {.max_factor_dim = 54});
    std::vector<LayerShape> shapes;
    for (const auto& layer : kfac.layers()) shapes.push_back(layer.shape);
    auto expected = bytes_per_rank(shapes, kfac.assignments(), dtype == at::kFloat ? 4 : 8).at(0);
    const int64_t staged = expected.staged;
    expected.staged = 0;
    EXPECT_EQ(kfac.state_bytes(), expected);
    const auto loss = model->forward(at::randn({1, 2, 5, 5, 5}, dtype)).sum();
    backward(kfac, loss, 1);
    EXPECT_EQ(kfac.state_bytes().staged, staged);
    kfac.step();
    EXPECT_EQ(kfac.state_bytes(), expected);
  }
}

TEST(KfacTest, LeavesOtherParametersAndLayersWithoutGradientAlone) {
  nn::Sequential model(nn::Linear(4, 4), nn::LayerNorm(nn::LayerNormOptions({4})), nn::Linear(4, 4));
  nn::Linear unused(4, 4);
  model->push_back(unused);
  Kfac kfac(*model);
  const auto x = at::randn({3, 4});
  const auto hidden = model[1]->as<nn::LayerNorm>()->forward(model[0]->as<nn::Linear>()->forward(x));
  const auto loss = model[2]->as<nn::Linear>()->forward(hidden).pow(2).sum(1).mean();
  backward(kfac, loss, 3);
  const auto norm = model[1]->parameters()[0].grad().clone();
  kfac.step();
  EXPECT_TRUE(model[1]->parameters()[0].grad().equal(norm));
  EXPECT_FALSE(unused->weight.grad().defined());
}

TEST(KfacTest, RefusesAModelWithoutLayersAndBadOptions) {
  nn::Sequential model(nn::LayerNorm(nn::LayerNormOptions({4})));
  EXPECT_THROW(Kfac{*model}, c10::Error);
  auto mlp = small_mlp();
  EXPECT_THROW((Kfac{*mlp, {.decay = 2}}), BadRequest);
}

TEST(KfacTest, OutlivesNoGraphThatStillHoldsItsHooks) {
  auto model = small_mlp();
  const auto loss = mean_loss(model, at::randn({4, 4}, at::kDouble));
  Kfac(*model).watch(loss, 4);
  EXPECT_NO_THROW(loss.backward());
}

TEST(KfacTrainingTest, ReachesALowerLossThanSgdInTheSameSteps) {
  torch::manual_seed(7);
  // Badly scaled inputs: what curvature is for.
  const auto x = at::randn({128, 8}) * at::logspace(-1.5, 0.5, 8),
             y = (x / at::logspace(-1.5, 0.5, 8)).sin().sum(1, true);
  const auto train = [&](bool second_order, double lr) {
    torch::manual_seed(11);
    nn::Sequential model(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 1));
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
    Kfac kfac(*model, {.lr = lr, .inverse_interval = 2, .kl_clip = 1e-3});
    at::Tensor loss;
    for (int i = 0; i < 100; ++i) {
      sgd.zero_grad();
      loss = (model->forward(x) - y).pow(2).mean();
      if (second_order) kfac.watch(loss, x.size(0));
      loss.backward();
      if (second_order) kfac.step();
      sgd.step();
    }
    return loss.item<double>();
  };
  double best_sgd = kNoClip;
  for (double lr : {0.3, 0.1, 0.03, 0.01}) {
    const double loss = train(false, lr);
    if (std::isfinite(loss)) best_sgd = std::min(best_sgd, loss);
  }
  const double natural = train(true, 0.1);
  EXPECT_LT(natural, 0.7 * best_sgd);
  RecordProperty("sgd", std::to_string(best_sgd));
  RecordProperty("kfac", std::to_string(natural));
}

}  // namespace spillway::kfac
