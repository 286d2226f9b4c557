#include "kfac/kfac.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "kfac/plan/assignment.h"
#include "tests/kfac/factors/layer_cases.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

const double kNoClip = std::numeric_limits<double>::infinity();

// Returns the running averages of the first layer.
std::vector<at::Tensor> held_by(const Kfac& kfac) {
  std::vector<at::Tensor> factors;
  for (size_t f = 0; f < kfac.layers().front().shape.factors().size(); ++f)
    factors.push_back(kfac.state().factor(0, f));
  return factors;
}

class KfacLayerTest : public testing::TestWithParam<LayerCase> {};

void expect_oracle(const LayerCase& layer_case, KfacOptions options) {
  options.kl_clip = kNoClip;
  options.eigen_rank = EigenRank::full();
  options.relative_damping = 0.3;
  for (auto form : kForms) {
    const auto limits = in_form(form);
    options.conv_factors = form;
    options.max_factor_dim = limits.max_factor_dim;
    options.max_linear_dim = limits.max_linear_dim;
    options.block_linear = limits.block_linear;
    const LayerRun run(layer_case);
    Kfac kfac(*run.module, options);
    backward(kfac, run.loss, run.input.size(0));
    const auto& shape = kfac.layers().at(0).shape;
    const auto gradient = run.gradient();
    auto factors = naive_factors(run, layer_case, shape);
    kfac.step();
    // The scales of the other conventions have an oracle of their own, so this test uses the held factors.
    if (options.convention != Convention::fisher) factors = held_by(kfac);
    const auto expected = reference::natural_gradient(shape, gradient, factors, {.relative = 0.3});
    const auto v = run.gradient();
    EXPECT_LT(largest_difference(v.weight, expected.weight), 1e-9 * expected.weight.abs().max().item<double>());
    if (shape.bias) {
      EXPECT_LT(largest_difference(v.bias, expected.bias), 1e-9 * expected.bias.abs().max().item<double>());
    }
  }
}

}  // namespace

TEST_P(KfacLayerTest, RewritesTheGradientAsTheDenseOracleDoes) {
  expect_oracle(GetParam(), {});
}
TEST_P(KfacLayerTest, DoesSoWithEveryMethodAndConvention) {
  for (auto convention : {Convention::fisher, Convention::kaisa, Convention::dp_kfac}) {
    expect_oracle(GetParam(), {.convention = convention, .precompute_outer = true});
    for (auto method : {Method::eigen, Method::plain, Method::pi})
      expect_oracle(GetParam(), {.method = method, .convention = convention});
  }
}
INSTANTIATE_TEST_SUITE_P(EveryKind, KfacLayerTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

/// Trains `steps` more steps, and expects each layer's gradient to be preconditioned as by the inverse that the Kfac
/// holds then, with a γ that comes from that inverse's own eigenvalues.
void expect_gamma_of_the_inverse_in_use(Kfac& kfac, nn::Sequential model, int steps) {
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    backward(kfac, mean_loss(model, at::randn({8, 4}, at::kDouble)), 8);
    std::vector<LayerGradient> raw;
    for (const Layer& layer : kfac.layers()) raw.push_back({layer.weight.grad().clone(), layer.bias.grad().clone()});
    kfac.step();
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < raw.size(); ++i) {
      const Layer& layer = kfac.layers()[i];
      const LayerInverse inverse{.held = kfac.state().inverse(i)};
      const auto v = precondition(layer.shape, raw[i], inverse, scales_of(layer.shape, inverse, {.relative = 0.3}));
      EXPECT_TRUE(layer.weight.grad().equal(v.weight)) << "layer " << i << ", step " << kfac.counters().steps;
      EXPECT_TRUE(layer.bias.grad().equal(v.bias)) << "layer " << i << ", step " << kfac.counters().steps;
    }
    for (const auto& parameter : model->parameters()) parameter.sub_(0.1 * parameter.grad());
  }
}

TEST(KfacTest, TakesGammaFromTheInverseThatIsInUse) {
  KfacOptions every_third{.factor_interval = 3, .inverse_interval = 3, .decay = 0.5, .eigen_rank = EigenRank::full()};
  every_third.relative_damping = 0.3;
  every_third.damping_scope = DampingScope::layer;
  every_third.kl_clip = kNoClip;
  std::vector<KfacOptions> all(4, every_third);
  all[1].eigen_rank = EigenRank::of(2);
  all[2].staleness = 2;
  for (const char* name : {"0", "2"}) all[3].layer_curvature.push_back({.layer = name, .interval = 3, .slot = 1});
  all[3].curvature_delay = 2;
  for (const KfacOptions& options : all) {
    auto model = small_mlp(), other = small_mlp(at::kDouble, 1);
    Kfac kfac(*model, options), resumed(*other, options);
    expect_gamma_of_the_inverse_in_use(kfac, model, 9);
    expect_gamma_of_the_inverse_in_use(resumed, other, 2);
    resumed.load_state_dict(kfac.state_dict());
    expect_gamma_of_the_inverse_in_use(resumed, other, 4);
  }
}

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
  EXPECT_LT(largest_difference(kfac.state().factor(0, 0)[0], rows.t().mm(rows) / 8), 1e-13);
  EXPECT_LT(largest_difference(kfac.state().factor(0, 1)[0], 4 * g.t().mm(g)), 1e-13);
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
  EXPECT_LT(largest_difference(kfac.state().factor(0, 1)[0], 4 * g.t().mm(g)), 1e-13);
}

TEST(KfacTest, NamesTheKindOfTheComingStep) {
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 2, .inverse_interval = 4, .burn_in = 2});
  std::vector<std::string> kinds;
  const auto x = at::randn({4, 4}, at::kDouble);
  for (int i = 0; i < 8; ++i) {
    model->zero_grad();
    kinds.emplace_back(kfac.work().kind);
    backward(kfac, mean_loss(model, x), 4);
    kfac.step();
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"factor+decompose", "factor", "factor", "plain", "factor+decompose",
                                             "plain", "factor", "plain"}));
  EXPECT_EQ(kfac.counters().steps, 8);
  EXPECT_EQ(kfac.counters().factor_updates, 5);
  EXPECT_EQ(kfac.counters().decompositions, 2);
}

TEST(KfacTest, FollowsIntervalsThatGrow) {
  auto model = small_mlp();
  Kfac kfac(*model,
            {.factor_interval = decayed(1, {{4, 3}}), .inverse_interval = decayed(2, {{3, 1.2}}), .burn_in = 0});
  std::vector<int64_t> factors, decompositions;
  const auto x = at::randn({4, 4}, at::kDouble);
  for (int step = 0; step < 12; ++step) {
    model->zero_grad();
    if (kfac.work().updates_factors) factors.push_back(step);
    if (kfac.work().decomposes) decompositions.push_back(step);
    backward(kfac, mean_loss(model, x), 4);
    kfac.step();
  }
  EXPECT_EQ(factors, (std::vector<int64_t>{0, 1, 2, 3, 6, 9})) << "three steps apart from step 4 on";
  EXPECT_EQ(decompositions, (std::vector<int64_t>{0, 2, 5, 8, 11})) << "2.4 steps apart: at the third";
}

TEST(KfacTest, ResumesInTheMiddleOfIntervalsThatGrow) {
  const KfacOptions options{
      .factor_interval = decayed(2, {{5, 2}}), .inverse_interval = decayed(4, {{5, 2}}), .burn_in = 1};
  const auto x = at::randn({4, 4}, at::kDouble);
  auto whole = small_mlp(), parts = small_mlp();
  const auto train = [&](nn::Sequential model, Kfac& kfac, int steps) {
    for (int i = 0; i < steps; ++i) {
      model->zero_grad();
      backward(kfac, mean_loss(model, x), 4);
      kfac.step();
      at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
  };
  Kfac straight(*whole, options), first(*parts, options);
  train(whole, straight, 16);
  train(parts, first, 7);
  Kfac second(*parts, options);
  second.state().resume(first.counters());
  for (size_t i = 0; i < first.layers().size(); ++i) {
    for (size_t f = 0; f < 2; ++f) second.state().held_factors(i)[f].copy_(first.state().held_factors(i)[f]);
    for (size_t t = 0; t < first.state().inverse(i).size(); ++t)
      second.state().inverse(i)[t].copy_(first.state().inverse(i)[t]);
  }
  second.state().largest_curvature().copy_(first.state().largest_curvature());
  train(parts, second, 9);
  for (size_t i = 0; i < whole->parameters().size(); ++i)
    EXPECT_TRUE(whole->parameters()[i].equal(parts->parameters()[i]));
  EXPECT_EQ(second.counters().decompositions, straight.counters().decompositions);
}

TEST(KfacTest, AsksToBeWatchedInAFactorStep) {
  auto model = small_mlp();
  Kfac kfac(*model);
  mean_loss(model, at::randn({4, 4}, at::kDouble)).backward();
  EXPECT_THROW(kfac.step(), c10::Error);
  EXPECT_THROW(kfac.watch(mean_loss(model, at::randn({4, 4}, at::kDouble)), 0), c10::Error);
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
    Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 1, .damping = damping});
    for (int i = 0; i < 3; ++i) {
      model->zero_grad();
      backward(kfac, mean_loss(model, x), 4);
      kfac.step();
    }
    factors.push_back(
        {kfac.state().factor(0, 0).clone(), kfac.state().factor(0, 1).clone(), kfac.state().factor(1, 0).clone()});
  }
  for (size_t i = 0; i < factors[0].size(); ++i) EXPECT_TRUE(factors[0][i].equal(factors[1][i]));
}

TEST(KfacTest, KeepsTheRunningAverageAndCountsWhenABackwardOverflows) {
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 1});
  const auto x = at::randn({4, 4}, at::kDouble);
  backward(kfac, mean_loss(model, x), 4);
  kfac.step();
  const auto before = kfac.state().factor(1, 1).clone();
  model->zero_grad();
  backward(kfac, mean_loss(model, x) * std::numeric_limits<double>::infinity(), 4);
  kfac.step();
  EXPECT_TRUE(kfac.state().factor(1, 1).equal(before));
  EXPECT_EQ(kfac.counters().dropped_factors, 2) << "the two G; both A were finite";
}

TEST(KfacTest, ForgetsAWatchedStepThatIsSkipped) {
  auto model = small_mlp();
  Kfac kfac(*model);
  backward(kfac, mean_loss(model, at::randn({4, 4}, at::kDouble)), 4);
  EXPECT_GT(kfac.usage().bytes.staged, 0);
  kfac.discard();
  EXPECT_EQ(kfac.usage().bytes.staged, 0);
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
    auto expected = bytes_per_rank(shapes, kfac.state().assignments(), dtype == at::kFloat ? 4 : 8).at(0);
    const int64_t staged = expected.staged;
    expected.staged = 0;
    EXPECT_EQ(kfac.usage().bytes, expected);
    const auto loss = model->forward(at::randn({1, 2, 5, 5, 5}, dtype)).sum();
    backward(kfac, loss, 1);
    EXPECT_EQ(kfac.usage().bytes.staged, staged);
    kfac.step();
    EXPECT_EQ(kfac.usage().bytes, expected);
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
  // The inputs are badly scaled, because curvature helps there.
  const auto x = at::randn({128, 8}) * at::logspace(-1.5, 0.5, 8),
             y = (x / at::logspace(-1.5, 0.5, 8)).sin().sum(1, true);
  const auto train = [&](bool second_order, double lr) {
    torch::manual_seed(11);
    nn::Sequential model(nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 1));
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
    Kfac kfac(*model, {.lr = lr, .factor_interval = 2, .inverse_interval = 2, .kl_clip = 1e-3});
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
