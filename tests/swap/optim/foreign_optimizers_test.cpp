// Tests of other libraries' optimizers and list operators, under budgets that do not hold all parameters at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <optional>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/optim/optimizer.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace spillway {
using namespace swap;
namespace {

using testing::EvictEverything;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kElements = 1 << 14;
constexpr int64_t kBytes = kElements * 4;
constexpr int kParameters = 8;

Tensors make(uint64_t seed) {
  at::manual_seed(seed);
  Tensors tensors;
  for (int i = 0; i < kParameters; ++i) tensors.push_back(at::randn({kElements}));
  return tensors;
}
std::vector<SessionOptions> sessions(int64_t tensors) {
  SessionOptions tight{.budget_bytes = CpuDevice::instance().ledger().used_bytes() + tensors * (kBytes + 256) + 4096,
                       .min_page_bytes = 1,
                       .small_page_bytes = 0};
  return {tight, {.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()}};
}

/// Expects three steps of an optimizer over all parameters to give the same bits with and without a Session.
void expect_unchanged(const std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>& make_optimizer) {
  auto run = [&](std::optional<SessionOptions> options) {
    std::optional<Session> session;
    if (options) session.emplace(*options);
    Tensors parameters = make(1);
    for (auto& p : parameters) p.requires_grad_();
    auto optimizer = make_optimizer(parameters);
    for (int i = 0; i < 3; ++i) {
      std::optional<Session::Step> step;
      if (session) step.emplace(session->step());
      optimizer->zero_grad();
      for (auto& p : parameters) (p * (i + 0.5)).sin().sum().backward();
      optimizer->step();
    }
    if (options) {
      EXPECT_GT(session->stats().pager.page_ins, 0);
    }
    optimizer.reset();
    session.reset();
    for (auto& p : parameters) p = p.detach();
    return parameters;
  };
  CpuDevice::instance();
  const Tensors plain = run(std::nullopt);
  for (const SessionOptions& options : sessions(/*tensors=*/8)) {
    const Tensors paged = run(options);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], paged[i])) << i;
  }
}

TEST(ForeignOptimizersTest, LibTorchsSgdWithMomentum) {
  expect_unchanged([](const Tensors& parameters) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
  });
}
TEST(ForeignOptimizersTest, LibTorchsAdam) {
  expect_unchanged([](const Tensors& parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
  });
}
TEST(ForeignOptimizersTest, LibTorchsAdamW) {
  expect_unchanged([](const Tensors& parameters) { return std::make_unique<torch::optim::AdamW>(parameters, 0.1); });
}
TEST(ForeignOptimizersTest, LibTorchsAdagradAndRmsprop) {
  expect_unchanged([](const Tensors& parameters) { return std::make_unique<torch::optim::Adagrad>(parameters, 0.1); });
  expect_unchanged([](const Tensors& parameters) {
    return std::make_unique<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(0.1).momentum(0.5));
  });
}

/// Runs Adam as LibTorch's foreach implementation writes it, with whole lists per operator.
void foreach_adam(Tensors& parameters, const Tensors& gradients, Tensors& mean, Tensors& square) {
  at::_foreach_lerp_(mean, gradients, 0.1);
  at::_foreach_mul_(square, 0.99);
  at::_foreach_addcmul_(square, gradients, gradients, 0.01);
  Tensors denominator = at::_foreach_sqrt(square);
  at::_foreach_add_(denominator, 1e-8);
  at::_foreach_addcdiv_(parameters, mean, denominator, -0.1);
}

TEST(ForeignOptimizersTest, ForeachListsNeedNotFitTogether) {
  auto run = [&](std::optional<SessionOptions> options) {
    std::optional<Session> session;
    if (options) session.emplace(*options);
    Tensors parameters = make(1), gradients = make(2), mean = make(3), square = make(4);
    for (auto& s : square) s.abs_();
    foreach_adam(parameters, gradients, mean, square);
    auto norms = at::stack(at::_foreach_norm(parameters, 2));
    if (options) {
      EXPECT_GT(session->stats().pager.page_ins, 0);
    }
    session.reset();
    parameters.push_back(norms);
    return parameters;
  };
  const Tensors plain = run(std::nullopt);
  for (const SessionOptions& options : sessions(/*tensors=*/6)) {  // 6 of 40 tensors fit
    const Tensors paged = run(options);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], paged[i])) << i;
  }
}

TEST(ForeignOptimizersTest, AForeachListThatIsLargerThanTheBudgetWorks) {
  Session session(sessions(/*tensors=*/4).front());
  Tensors a = make(1);  // eight tensors, of which four fit
  at::_foreach_mul_(a, 2.0);
  at::_foreach_add_(a, a);
  const Tensors expected = make(1);
  for (int i = 0; i < kParameters; ++i) EXPECT_TRUE(at::equal(a[i], expected[i] * 2.0 * 2)) << i;
}

/// Returns the message of the OutOfBudget that `work` throws.
std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const OutOfBudget& error) {
    return error.what();
  }
  return "";
}

TEST(ForeignOptimizersTest, AFusedListThatDoesNotFitNamesItselfAndTheGroupedOptimizer) {
  Session session(sessions(/*tensors=*/12).front());
  const int64_t budget = session.ledger().budget_bytes();
  Tensors parameters = make(1), gradients = make(2);
  Tensors mean, square, steps;
  for (auto& p : parameters) {
    mean.push_back(at::zeros_like(p));
    square.push_back(at::zeros_like(p));
    steps.push_back(at::ones({}));
  }
  const std::string message = refusal([&] {
    at::_fused_adam_(parameters, gradients, mean, square, {}, steps, 0.1, 0.9, 0.999, 0.0, 1e-8, false, false);
  });
  for (const std::string& part :
       {std::string("aten::_fused_adam_"), std::string("self (8 tensors, 512 KiB)"), std::string("grads (8 tensors"),
        std::string("exp_avgs (8 tensors"), std::string("together 2.00 MiB"), "a budget of " + format_bytes(budget),
        std::string("swap/optim/optimizer.h")})
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  // The parameters are unchanged, and the advice of the message works.
  const Tensors expected = make(1);
  for (int i = 0; i < kParameters; ++i) EXPECT_TRUE(at::equal(parameters[i], expected[i])) << i;
  mean.clear();
  square.clear();
  for (int i = 0; i < kParameters; ++i) {
    parameters[i].requires_grad_();
    parameters[i].mutable_grad() = gradients[i];
  }
  Adam adam(parameters, {.lr = 0.1, .group_bytes = 4 * kBytes});
  EXPECT_NO_THROW(adam.step());
}

TEST(ForeignOptimizersTest, AnyListThatDoesNotFitNamesItself) {
  Session session(sessions(/*tensors=*/4).front());
  Tensors a = make(1);
  const std::string message = refusal([&] { (void)at::cat(a); });
  EXPECT_NE(message.find("aten::cat takes its lists whole: tensors (8 tensors, 512 KiB)"), std::string::npos)
      << message;
  EXPECT_EQ(message.find("optim.h"), std::string::npos) << message;
  EXPECT_TRUE(at::equal(a[3], make(1)[3]));
}

}  // namespace
}  // namespace spillway
