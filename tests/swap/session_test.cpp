#include "swap/session.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>

#include <optional>
#include <thread>

#include "core/device/cpu_device.h"
#include "core/error.h"
#include "swap/gate/storage_page.h"
#include "swap/optim/optimizer.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"
#include "tests/support/checking_observers.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;

using testing::DelayedTimeline;
using testing::EvictEverything;
using testing::FailingTimeline;

/// A residual 3-D convolutional block with both norms, dropout and in-place activations.
struct BlockImpl : nn::Module {
  BlockImpl() {
    first = register_module("first", nn::Conv3d(nn::Conv3dOptions(8, 8, 3).padding(1)));
    norm = register_module("norm", nn::InstanceNorm3d(nn::InstanceNorm3dOptions(8).affine(true)));
    second = register_module("second", nn::Conv3d(nn::Conv3dOptions(8, 8, 1)));
    batch_norm = register_module("batch_norm", nn::BatchNorm3d(8));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto a = norm(first(x));
    at::leaky_relu_(a, 0.01);
    auto b = batch_norm(second(a));
    b = at::dropout(at::relu_(b), 0.3, is_training());
    auto pooled = at::upsample_nearest3d(at::avg_pool3d(b, 2), x.sizes().slice(2));
    return x + at::sigmoid(b) * pooled;
  }
  nn::Conv3d first{nullptr}, second{nullptr};
  nn::InstanceNorm3d norm{nullptr};
  nn::BatchNorm3d batch_norm{nullptr};
};
TORCH_MODULE(Block);

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    for (int i = 0; i < 6; ++i) blocks.push_back(register_module(str("block", i), Block()));
    head = register_module("head", nn::Conv3d(nn::Conv3dOptions(16, 2, 1)));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto first = x.repeat({1, 4, 1, 1, 1});
    auto y = first;
    for (auto& block : blocks) y = block(y);
    return head(at::cat(std::vector<at::Tensor>{first, y}, 1));
  }
  std::vector<Block> blocks;
  nn::Conv3d head{nullptr};
};
TORCH_MODULE(ConvNet);

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> state;
  SessionStats stats;
  int64_t floor_bytes = 0;
  int64_t predicted_peak_bytes = 0;
};

/// Trains the same network from the same seed; with `options`, inside a Session.
Result train(std::optional<SessionOptions> options, int steps = 4, int64_t edge = 16) {
  Result result;
  at::manual_seed(3);
  std::optional<Session> session;
  if (options) session.emplace(*options);
  ConvNet net;
  Adam adam(net->parameters(), {.lr = 1e-2, .group_bytes = 1 << 14});
  auto input = at::randn({2, 2, edge, edge, edge});
  auto target = at::rand({2, 2, edge, edge, edge}).gt(0.5).to(at::kFloat);
  for (int i = 0; i < steps; ++i) {
    std::optional<Session::Step> step;
    if (session) step.emplace(session->step());
    auto loss = at::binary_cross_entropy_with_logits(net(input), target);
    loss.backward();
    adam.step();
    adam.zero_grad();
    result.losses.push_back(loss.item<double>());
  }
  if (session) {
    result.stats = session->stats();
    result.floor_bytes = session->trace()->floor_bytes();
    result.predicted_peak_bytes = session->schedule()->predicted_peak_bytes;
  }
  session.reset();
  for (auto& p : net->named_parameters()) result.state.push_back(p.value().detach().clone());
  for (auto& b : net->named_buffers()) result.state.push_back(b.value().clone());
  return result;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.state.size(), b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) EXPECT_TRUE(at::equal(a.state[i], b.state[i])) << i;
}

struct SessionTest : ::testing::Test {
  void SetUp() override {
    CpuDevice::instance();
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    unlimited = train(std::nullopt);
    Result observed = train(SessionOptions{});
    peak = observed.stats.peak_bytes;
    floor = observed.floor_bytes;
  }
  Result unlimited;
  int64_t peak = 0, floor = 0;
};

TEST_F(SessionTest, AnUnlimitedSessionChangesNothing) {
  expect_same(train(SessionOptions{}), unlimited);
}

TEST_F(SessionTest, EvictingEverythingAfterEveryOperatorChangesNothing) {
  Result result = train(SessionOptions{.min_page_bytes = 1, .observer = std::make_shared<EvictEverything>()});
  expect_same(result, unlimited);
  EXPECT_GT(result.stats.pager.demand_page_ins, 100);
}

TEST_F(SessionTest, StaysWithinEveryFeasibleBudgetWithTheSameBits) {
  ASSERT_LT(floor, peak / 2);
  for (int64_t budget : {peak * 3 / 4, peak / 2, floor + floor / 10, floor}) {
    for (bool prefetch : {true, false}) {
      SCOPED_TRACE(str("budget ", budget, " of peak ", peak, ", floor ", floor, ", prefetch ", prefetch));
      Result result = train(SessionOptions{.budget_bytes = budget, .prefetch = prefetch, .small_page_bytes = 1 << 14});
      expect_same(result, unlimited);
      EXPECT_LE(result.stats.peak_bytes, budget);
      EXPECT_GT(result.stats.pager.bytes_in, 0);
      EXPECT_EQ(result.stats.deviations, 0);
    }
  }
}

TEST_F(SessionTest, PredictsThePeakThatIsCounted) {
  for (const int64_t budget : {kUnlimitedBytes, peak * 3 / 4, floor + floor / 10}) {
    const Result result = train(SessionOptions{.budget_bytes = budget, .small_page_bytes = 1 << 14});
    const auto counted = static_cast<double>(result.stats.peak_bytes);
    EXPECT_GE(static_cast<double>(result.predicted_peak_bytes), 0.99 * counted) << "budget " << budget;
    EXPECT_LE(static_cast<double>(result.predicted_peak_bytes), 1.05 * counted) << "budget " << budget;
  }
}

TEST_F(SessionTest, RefusesABudgetOneBlockBelowTheFloorNamingTheOperator) {
  try {
    train(SessionOptions{.budget_bytes = floor - 64});
    FAIL() << "trained below the floor";
  } catch (const OutOfBudget& error) {
    EXPECT_NE(std::string(error.what()).find("aten::"), std::string::npos) << error.what();
  }
  expect_same(train(SessionOptions{.budget_bytes = peak}), unlimited);  // no memory is left behind
}

TEST_F(SessionTest, LateCopiesChangeNothing) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    SessionOptions options{.budget_bytes = peak / 2, .small_page_bytes = 1 << 14};
    options.decorate_timeline = [seed](std::unique_ptr<Timeline>, std::string_view lane) {
      return std::make_unique<DelayedTimeline>(seed + static_cast<uint32_t>(lane.size()),
                                               std::chrono::microseconds(700));
    };
    Result result = train(options);
    expect_same(result, unlimited);
    EXPECT_LE(result.stats.peak_bytes, peak / 2);
  }
}

TEST_F(SessionTest, AFailedCopyIsThrownAndTheProcessGoesOn) {
  for (std::string_view bad_lane : {"copy out", "copy in"}) {
    SessionOptions options{.budget_bytes = peak / 2, .small_page_bytes = 1 << 14};
    options.decorate_timeline = [&](std::unique_ptr<Timeline> real,
                                    std::string_view lane) -> std::unique_ptr<Timeline> {
      if (lane != bad_lane) return real;
      return std::make_unique<FailingTimeline>(std::move(real), 5);
    };
    EXPECT_THROW(train(options), std::runtime_error) << bad_lane;
    expect_same(train(SessionOptions{.budget_bytes = peak / 2}), unlimited);
  }
}

TEST_F(SessionTest, GivesEveryByteBack) {
  const int64_t before = CpuDevice::instance().ledger().used_bytes();
  { train(SessionOptions{.budget_bytes = peak / 2, .small_page_bytes = 1 << 14}); }
  EXPECT_EQ(CpuDevice::instance().ledger().used_bytes(), before);
}

TEST_F(SessionTest, CountsCategoriesThatAddUpToThePeak) {
  Result result = train(SessionOptions{});
  const BytesByCategory& at_peak = result.stats.peak_by_category;
  int64_t sum = 0;
  for (int64_t bytes : at_peak) sum += bytes;
  EXPECT_EQ(sum, result.stats.peak_bytes);
  EXPECT_GT(at_peak[Category::weights], 0);
  EXPECT_GT(at_peak[Category::optimizer], at_peak[Category::weights]);
  EXPECT_GT(at_peak[Category::activations], result.stats.peak_bytes / 2);
}

TEST_F(SessionTest, AStepThatDoesSomethingElseFallsBackToDemandAndIsPlannedAnew) {
  auto run = [&](std::optional<SessionOptions> options, int64_t* deviations) {
    at::manual_seed(5);
    std::optional<Session> session;
    if (options) session.emplace(*options);
    ConvNet net;
    Sgd sgd(net->parameters(), {.lr = 1e-2});
    std::vector<double> losses;
    for (int64_t edge : {16, 16, 12, 16, 16, 20, 16, 16}) {
      std::optional<Session::Step> step;
      if (session) step.emplace(session->step());
      auto loss = net(at::ones({2, 2, edge, edge, edge})).square().mean();
      if (losses.size() == 3) loss = loss * 2;  // a branch that the other losses do not take
      loss.backward();
      sgd.step();
      sgd.zero_grad();
      losses.push_back(loss.item<double>());
    }
    if (session && deviations) *deviations = session->stats().deviations;
    return losses;
  };
  int64_t deviations = 0;
  EXPECT_EQ(run(SessionOptions{.budget_bytes = peak, .small_page_bytes = 1 << 14}, &deviations),
            run(std::nullopt, nullptr));
  EXPECT_GE(deviations, 3);
  EXPECT_LE(deviations, 6);
}

TEST_F(SessionTest, SurvivesAnExceptionInTheUsersForward) {
  Session session({.budget_bytes = peak / 2, .small_page_bytes = 1 << 14});
  at::manual_seed(3);
  ConvNet net;
  auto input = at::randn({2, 2, 16, 16, 16});
  auto forward = [&](bool fail) {
    auto step = session.step();
    auto y = net(input);
    if (fail) throw std::runtime_error("user");
    y.sum().backward();
    for (auto& p : net->parameters()) p.mutable_grad().reset();
  };
  for (bool fail : {false, false, true, false, true, true, false}) {
    if (fail)
      EXPECT_THROW(forward(true), std::runtime_error);
    else
      EXPECT_NO_THROW(forward(false));
  }
  EXPECT_LE(session.stats().peak_bytes, peak / 2);
}

TEST_F(SessionTest, ARawPointerOfAnAbsentTensorIsAClearError) {
  Session session({.observer = std::make_shared<EvictEverything>()});
  auto a = at::arange(100'000, at::kFloat);
  auto b = a + 1;
  try {
    (void)a.data_ptr<float>();
    FAIL() << "gave a pointer of an absent tensor";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("resident(tensor)"), std::string::npos);
  }
  {
    auto lent = resident(a);
    a.data_ptr<float>()[7] = 70;
    (void)(b + 1);
    EXPECT_EQ(a.data_ptr<float>()[7], 70);  // a lease lasts while other operators run
  }
  (void)(b + 1);
  EXPECT_EQ(a[7].item<float>(), 70);  // the value written through the pointer was not dropped
  auto read = resident_read(a);
  EXPECT_EQ(a.const_data_ptr<float>()[99'999], 99'999);
}

TEST_F(SessionTest, AnotherThreadNeedsEnterToTouchAbsentTensors) {
  Session session({.observer = std::make_shared<EvictEverything>()});
  auto a = at::ones({100'000});
  auto b = a * 2;
  std::string message;
  float sum = 0;
  std::thread([&] {
    try {
      (void)b.sum();
    } catch (const std::exception& error) {
      message = error.what();
    }
    auto entry = session.enter();
    sum = b.sum().item<float>();
  }).join();
  EXPECT_NE(message.find("Session::enter"), std::string::npos) << message;
  EXPECT_EQ(sum, 200'000);
}

TEST_F(SessionTest, AdoptsTensorsThatWereBornBeforeItAndBringsThemHome) {
  auto weights = at::ones({1 << 16});
  at::Tensor product;
  {
    Session session({.observer = std::make_shared<EvictEverything>()});
    product = weights * 3;
    EXPECT_THROW((void)weights.data_ptr<float>(), c10::Error);
  }
  EXPECT_EQ(weights.data_ptr<float>()[1], 1);
  EXPECT_EQ(product.data_ptr<float>()[1], 3);
}

TEST_F(SessionTest, RefusesASecondSessionOnItsThreadAndBadOptions) {
  EXPECT_THROW(Session({.budget_bytes = 0}), BadRequest);
  EXPECT_THROW(Session({.min_page_bytes = 0}), BadRequest);
  EXPECT_THROW(Session({.host_budget_bytes = -1}), BadRequest);
  EXPECT_THROW(Session({.ranks_of_host = 0}), BadRequest);
  Session session(SessionOptions{});
  EXPECT_THROW(Session(SessionOptions{}), std::logic_error);
  auto step = session.step();
  EXPECT_THROW((void)session.step(), std::logic_error);
}

}  // namespace
}  // namespace spillway
