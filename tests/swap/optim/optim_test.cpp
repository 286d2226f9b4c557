#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "core/device/cpu_device.h"
#include "swap/optim/optimizer.h"
#include "swap/session.h"

namespace spillway {
namespace {

std::vector<at::Tensor> parameters(at::ScalarType type = at::kFloat) {
  at::manual_seed(1);
  std::vector<at::Tensor> tensors;
  for (int64_t n : {1000, 1, 70'000, 33, 5000}) tensors.push_back(at::randn({n}).to(type).requires_grad_());
  tensors.push_back(at::randn({}).to(type).requires_grad_());
  return tensors;
}

/// Runs five steps. One parameter has no gradient in the first two.
template <class Step>
std::vector<at::Tensor> run(std::vector<at::Tensor> parameters, Step step) {
  for (int i = 0; i < 5; ++i) {
    at::Tensor loss = at::zeros({}, parameters[0].options().requires_grad(false));
    for (size_t p = 0; p < parameters.size(); ++p)
      if (!(p == 3 && i < 2)) loss = loss + (parameters[p] * (i + 1.0)).sin().sum();
    loss.backward();
    step();
    for (auto& p : parameters) p.mutable_grad().reset();
  }
  return parameters;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

/// Checks Spillway's optimizers against reference ones. A parameter's type must not matter, so in float64 the updates
/// agree far beyond float32's digits.
template <class Own, class Reference, class OwnOptions, class ReferenceOptions>
void expect_agreement(const OwnOptions& own_options, const ReferenceOptions& reference_options) {
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    auto own = parameters(type), theirs = parameters(type);
    Own optimizer(own, own_options);
    Reference reference(theirs, reference_options);
    run(own, [&] { optimizer.step(); });
    run(theirs, [&] { reference.step(); });
    const double relative = type == at::kDouble ? 1e-12 : 1e-5;
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_TRUE(at::allclose(own[i], theirs[i], relative, relative / 10)) << i << " of type " << type;
  }
}

TEST(OptimTest, AdamAgreesWithLibTorchsAlsoWhenAParameterStartsLate) {
  expect_agreement<Adam, torch::optim::Adam>(AdamOptions{.lr = 1e-2, .weight_decay = 0.1},
                                             torch::optim::AdamOptions(1e-2).weight_decay(0.1));
}

TEST(OptimTest, AdamWAgreesWithLibTorchsAlsoWhenAParameterStartsLate) {
  expect_agreement<AdamW, torch::optim::AdamW>(AdamOptions{.lr = 1e-2, .weight_decay = 0.1},
                                               torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

TEST(OptimTest, AdamWShrinksWeightsThatAdamLeavesWhereTheyAre) {
  auto shrink = [](auto optimizer, const at::Tensor& parameter) {
    parameter.mutable_grad() = at::zeros_like(parameter);
    optimizer->step();
    return parameter[0].item<double>();
  };
  auto p = at::full({4}, 2.0, at::kDouble).requires_grad_(), q = p.detach().clone().requires_grad_();
  // The decoupled decay is x ← x − lr·λ·x, whatever the moments. Adam's own decay is a gradient, whose sign alone
  // decides the first step.
  EXPECT_DOUBLE_EQ(
      shrink(std::make_unique<AdamW>(std::vector<at::Tensor>{p}, AdamOptions{.lr = 0.1, .weight_decay = 0.5}), p),
      2 - 0.1 * 0.5 * 2);
  EXPECT_NEAR(
      shrink(std::make_unique<Adam>(std::vector<at::Tensor>{q}, AdamOptions{.lr = 0.1, .weight_decay = 0.5}), q),
      2 - 0.1, 1e-8);
}

TEST(OptimTest, SgdAgreesWithLibTorchsAlsoWhenAParameterStartsLate) {
  using Options = torch::optim::SGDOptions;
  expect_agreement<Sgd, torch::optim::SGD>(SgdOptions{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1},
                                           Options(1e-2).momentum(0.9).weight_decay(0.1));
  expect_agreement<Sgd, torch::optim::SGD>(
      SgdOptions{.lr = 1e-2, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1},
      Options(1e-2).momentum(0.9).nesterov(true).weight_decay(0.1));
  expect_agreement<Sgd, torch::optim::SGD>(SgdOptions{.lr = 1e-2, .momentum = 0, .weight_decay = 0.1},
                                           Options(1e-2).weight_decay(0.1));
}

TEST(OptimTest, SgdWithoutMomentumHasNoState) {
  EXPECT_TRUE(Sgd(parameters(), {.momentum = 0}).state().empty());
  EXPECT_EQ(Sgd(parameters(), {.momentum = 0.5}).state().size(), 1u);
}

/// An oracle: Algorithm 2 of You et al. 2020, number by number in float64. A layer is a parameter.
class LambOracle {
 public:
  LambOracle(std::vector<at::Tensor> parameters, LambOptions options)
      : parameters_(std::move(parameters)), options_(options), layers_(parameters_.size()) {}

  void step() {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].grad().defined()) update(parameters_[i], layers_[i]);
  }

 private:
  struct Layer {
    std::vector<double> m, v;
    int t = 0;
  };

  void update(at::Tensor& parameter, Layer& layer) {
    const auto n = static_cast<size_t>(parameter.numel());
    layer.m.resize(n);
    layer.v.resize(n);
    ++layer.t;
    const at::Tensor x = parameter.to(at::kDouble).contiguous(), g = parameter.grad().to(at::kDouble).contiguous();
    const double *xs = x.const_data_ptr<double>(), *gs = g.const_data_ptr<double>();
    std::vector<double> direction(n);
    double x_norm = 0, norm = 0;
    for (size_t k = 0; k < n; ++k) {
      layer.m[k] = options_.beta1 * layer.m[k] + (1 - options_.beta1) * gs[k];
      layer.v[k] = options_.beta2 * layer.v[k] + (1 - options_.beta2) * gs[k] * gs[k];
      const double m = layer.m[k] / (1 - std::pow(options_.beta1, layer.t));
      const double v = layer.v[k] / (1 - std::pow(options_.beta2, layer.t));
      direction[k] = m / (std::sqrt(v) + options_.eps) + options_.weight_decay * xs[k];
      x_norm += xs[k] * xs[k];
      norm += direction[k] * direction[k];
    }
    const double ratio = x_norm > 0 && norm > 0 ? std::sqrt(x_norm / norm) : 1;
    at::Tensor after = at::empty_like(x);
    for (size_t k = 0; k < n; ++k) after.mutable_data_ptr<double>()[k] = xs[k] - options_.lr * ratio * direction[k];
    parameter.copy_(after);
  }

  std::vector<at::Tensor> parameters_;
  LambOptions options_;
  std::vector<Layer> layers_;
};

TEST(OptimTest, LambAgreesWithItsEquationsAlsoWhenAParameterStartsLate) {
  for (double weight_decay : {0.0, 0.1})
    expect_agreement<Lamb, LambOracle>(LambOptions{.lr = 1e-2, .weight_decay = weight_decay},
                                       LambOptions{.lr = 1e-2, .weight_decay = weight_decay});
}

TEST(OptimTest, LambTakesAWholeStepWhereANormIsZero) {
  auto p = at::zeros({3}, at::kDouble).requires_grad_();
  p.mutable_grad() = at::tensor({1.0, -2.0, 4.0}, at::kDouble);
  Lamb lamb({p}, {.lr = 0.25, .eps = 1e-12});
  lamb.step();
  EXPECT_TRUE(at::allclose(p, at::tensor({-0.25, 0.25, -0.25}, at::kDouble), 1e-9)) << p;
  p.mutable_grad().zero_();
  auto still = at::ones({3}, at::kDouble).requires_grad_();
  still.mutable_grad() = at::zeros_like(still);
  Lamb rest({still}, {.weight_decay = 0});
  rest.step();
  EXPECT_TRUE(at::equal(still, at::ones_like(still)));
}

TEST(OptimTest, GroupingChangesNoBit) {
  auto train = [&](auto make) {
    auto p = parameters();
    auto optimizer = make(p);
    return run(p, [&] {
      optimizer->clip_gradients(0.5);
      optimizer->step();
    });
  };
  for (int64_t bytes : {1, 20'000, 400'000}) {
    auto compare = [&](auto make) {
      expect_equal(train([&](auto p) { return make(p, bytes); }), train([&](auto p) { return make(p, 1 << 30); }));
    };
    compare(
        [](auto p, int64_t group) { return std::make_unique<Adam>(p, AdamOptions{.lr = 1e-2, .group_bytes = group}); });
    compare([](auto p, int64_t group) {
      return std::make_unique<AdamW>(p, AdamOptions{.lr = 1e-2, .weight_decay = 0.1, .group_bytes = group});
    });
    compare(
        [](auto p, int64_t group) { return std::make_unique<Lamb>(p, LambOptions{.lr = 1e-2, .group_bytes = group}); });
    compare(
        [](auto p, int64_t group) { return std::make_unique<Sgd>(p, SgdOptions{.lr = 1e-2, .group_bytes = group}); });
  }
}

/// Checks parameters that are given twice, as a C++ module lists a parameter that two of its submodules have
/// registered.
template <class Own, class Options>
void expect_a_parameter_given_twice_to_be_updated_once(const Options& options) {
  auto once = parameters(), twice = parameters();
  auto given = twice;
  given.insert(given.end(), twice.begin(), twice.end());
  Own expected(once, options), optimizer(given, options);
  EXPECT_EQ(optimizer.parameters().size(), once.size());
  run(once, [&] { EXPECT_GT(expected.clip_gradients(1), 0), expected.step(); });
  run(twice, [&] { EXPECT_GT(optimizer.clip_gradients(1), 0), optimizer.step(); });
  expect_equal(once, twice);
}

TEST(OptimTest, AParameterThatIsGivenTwiceIsUpdatedOnce) {
  expect_a_parameter_given_twice_to_be_updated_once<Sgd>(SgdOptions{});
  expect_a_parameter_given_twice_to_be_updated_once<Adam>(AdamOptions{});
  expect_a_parameter_given_twice_to_be_updated_once<Lamb>(LambOptions{});
}

TEST(OptimTest, ClippingAgreesWithLibTorchs) {
  for (double longest : {0.5, 1e9}) {
    auto own = parameters(), theirs = parameters();
    for (auto* p : {&own, &theirs})
      for (size_t i : {0, 2, 3, 4}) p->at(i).mutable_grad() = p->at(i).detach() * static_cast<double>(i + 1);
    Sgd sgd(own, {});
    EXPECT_NEAR(sgd.clip_gradients(longest), torch::nn::utils::clip_grad_norm_(theirs, longest), 1e-2);
    for (size_t i : {0, 2, 3, 4}) EXPECT_TRUE(at::allclose(own[i].grad(), theirs[i].grad(), 1e-5)) << i;
    EXPECT_FALSE(own[1].grad().defined());
  }
  auto p = parameters();
  Sgd idle(p, {});
  EXPECT_EQ(idle.clip_gradients(1), 0);
  EXPECT_THROW(idle.clip_gradients(0), c10::Error);
}

TEST(OptimTest, GradientsThatTwoOptimizersClipTogetherAreThoseOfOne) {
  auto whole = parameters(), halves = parameters();
  for (auto* p : {&whole, &halves})
    for (size_t i : {0, 2, 3, 4}) p->at(i).mutable_grad() = p->at(i).detach() * static_cast<double>(i + 1);
  Sgd one(whole, {}), first({halves.begin(), halves.begin() + 2}, {}), second({halves.begin() + 2, halves.end()}, {});
  EXPECT_EQ(first.gradient_norms()[1].item<double>(), 0);  // it has no gradient
  const at::Tensor norms = at::cat({first.gradient_norms(), second.gradient_norms()});
  EXPECT_TRUE(at::equal(norms, one.gradient_norms()));
  const double norm = one.clip_gradients(0.5);
  EXPECT_EQ(first.clip_gradients(0.5, norms), norm);
  EXPECT_EQ(second.clip_gradients(0.5, norms), norm);
  for (size_t i : {0, 2, 3, 4}) EXPECT_TRUE(at::equal(whole[i].grad(), halves[i].grad())) << i;
}

TEST(OptimTest, StepsAreAsLongAsTheSharedNormsSay) {
  const auto after = [](auto make, bool clips) {
    auto own = at::full({4}, 2.0).requires_grad_(), other = own.detach().clone().requires_grad_();
    own.mutable_grad() = at::full({4}, 1.0);
    other.mutable_grad() = at::full({4}, 1.0 + 1e-3);  // the difference is far larger than another rank's rounding
    std::vector<at::Tensor> shared;
    const auto step = [&](const at::Tensor& p, const std::function<void(const at::Tensor&)>& share) {
      auto optimizer = make(p);
      optimizer->share_sums(share);
      if (clips) optimizer->clip_gradients(0.5);
      optimizer->step();
    };
    step(own, [&](const at::Tensor& norms) { shared.push_back(norms.clone()); });
    EXPECT_FALSE(shared.empty()) << "a norm that nobody shares";
    size_t next = 0;
    step(other, [&](const at::Tensor& norms) {
      ASSERT_LT(next, shared.size());
      norms.copy_(shared[next++]);
    });
    EXPECT_EQ(next, shared.size());
    // The clip factor is that of `own`, so a gradient that was 1.001 times as long still is.
    if (clips) {
      EXPECT_TRUE(at::allclose(other.grad(), own.grad() * (1 + 1e-3), 1e-6, 0));
    }
  };
  after([](auto p) { return std::make_unique<Sgd>(std::vector<at::Tensor>{p}, SgdOptions{.momentum = 0}); }, true);
  after([](auto p) { return std::make_unique<Lamb>(std::vector<at::Tensor>{p}, LambOptions{}); }, false);
  after([](auto p) { return std::make_unique<Lamb>(std::vector<at::Tensor>{p}, LambOptions{}); }, true);
}

TEST(OptimTest, AGradientLaidOutOtherwiseThanItsParameterIsReadRightly) {
  at::manual_seed(2);
  const at::Tensor start = at::randn({4, 3, 2, 2}), gradient = at::randn({4, 3, 2, 2});
  auto step = [&](auto make, at::MemoryFormat of_gradient) {
    at::Tensor p = start.contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    p.mutable_grad() = gradient.contiguous(of_gradient);
    make(p)->step();
    return p;
  };
  auto compare = [&](auto make) {
    EXPECT_TRUE(at::equal(step(make, at::MemoryFormat::Contiguous), step(make, at::MemoryFormat::ChannelsLast)));
  };
  compare([](auto p) { return std::make_unique<Sgd>(std::vector<at::Tensor>{p}, SgdOptions{}); });
  compare([](auto p) { return std::make_unique<AdamW>(std::vector<at::Tensor>{p}, AdamOptions{}); });
  compare([](auto p) { return std::make_unique<Lamb>(std::vector<at::Tensor>{p}, LambOptions{}); });
}

TEST(OptimTest, NeedsOnlyOneGroupResidentAtATime) {
  auto p = std::vector<at::Tensor>();
  for (int i = 0; i < 12; ++i) p.push_back(at::ones({1 << 16}).requires_grad_());
  for (auto& t : p) t.mutable_grad() = at::ones_like(t);
  const int64_t one = (1 << 18) * 4;  // a parameter, its gradient and two moments
  Session session({.budget_bytes = 3 * one, .small_page_bytes = 0});
  Adam adam(p, {.lr = 0.5, .group_bytes = one});
  EXPECT_NEAR(adam.clip_gradients(1e9), std::sqrt(12.0 * (1 << 16)), 1e-2);
  adam.step();
  for (auto& t : p) EXPECT_NEAR(t[7].item<double>(), 0.5, 1e-5);
  Lamb lamb(p, {.lr = 0.5, .group_bytes = one * 3 / 2});
  lamb.step();
  for (auto& t : p) EXPECT_NEAR(t[7].item<double>(), 0.25, 1e-3);
  EXPECT_LE(session.stats().peak_bytes, 3 * one);
}

TEST(OptimTest, CountsWeightsGradientsAndState) {
  CpuDevice& device = CpuDevice::instance();
  auto used = [&](Category category) { return device.ledger().used_by_category()[static_cast<size_t>(category)]; };
  const int64_t weights = used(Category::weights), gradients = used(Category::gradients),
                state = used(Category::optimizer);
  auto p = at::ones({1 << 16}).requires_grad_();
  Adam adam({p}, {});
  p.square().sum().backward();
  EXPECT_GE(used(Category::weights) - weights, 1 << 18);
  EXPECT_GE(used(Category::gradients) - gradients, 1 << 18);
  EXPECT_GE(used(Category::optimizer) - state, 1 << 19);
  adam.zero_grad();
  EXPECT_EQ(used(Category::gradients), gradients);
}

TEST(OptimTest, RefusesBadOptions) {
  EXPECT_THROW(Adam({at::ones({1}).requires_grad_()}, {.lr = 0}), c10::Error);
  EXPECT_THROW(Sgd({at::ones({1}).requires_grad_()}, {.momentum = 1}), c10::Error);
  EXPECT_THROW(Sgd({at::ones({1}).requires_grad_()}, {.momentum = 0, .nesterov = true}), c10::Error);
  EXPECT_THROW(Sgd({at::ones({1})}, {}), c10::Error);
}

}  // namespace
}  // namespace spillway
