// Tests of Sessions on a CUDA GPU. They are skipped, and counted, where there is no GPU.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "swap/optim/optimizer.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"
#include "tests/support/checking_observers.h"
#include "tests/support/timeline_conformance.h"

namespace spillway {
using namespace swap;

namespace testing {

struct GpuTimelines {
  static std::unique_ptr<Timeline> make() {
    try {
      Device& gpu = open_device("cuda");
      static const MemoryRange host = gpu.reserve_host_memory(64 << 20);
      return gpu.make_timeline("test");
    } catch (const DeviceError&) {
      return nullptr;
    }
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, TimelineConformanceTest, GpuTimelines);

}  // namespace testing

namespace {

namespace nn = torch::nn;

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      (void)open_device("cuda");
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

/// Tests of Unified Memory ask for it, because a GPU with too much of it may hang.
#define SKIP_WITHOUT_UNIFIED() \
  if (!std::getenv("SPILLWAY_TEST_UNIFIED")) GTEST_SKIP() << "SPILLWAY_TEST_UNIFIED=1 tries Unified Memory"

nn::Sequential make_net(int64_t channels) {
  nn::Sequential net;
  for (int i = 0; i < 6; ++i) {
    net->push_back(nn::Conv3d(nn::Conv3dOptions(i ? 16 : channels, 16, 3).padding(1)));
    net->push_back(nn::BatchNorm3d(16));
    net->push_back(nn::LeakyReLU());
  }
  net->push_back(nn::Conv3d(nn::Conv3dOptions(16, 2, 1)));
  return net;
}

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  SessionStats stats;
  int64_t floor_bytes = 0;
  int64_t library_bytes = 0;
  int64_t operators_traced = 0;

  /// Returns a budget: a share of what tensors hold at the peak, but enough for every operator and for what libraries
  /// still take meanwhile.
  int64_t budget(int64_t percent) const {
    constexpr int64_t kSlack = int64_t{32} << 20;
    return std::max(floor_bytes + kSlack, library_bytes + (stats.peak_bytes - library_bytes) * percent / 100);
  }
};

struct Shape {
  int64_t channels = 2;
  int64_t edge = 64;
};

Result train(SessionOptions options, int steps = 4, Shape shape = {}) {
  Result result;
  options.device = "cuda";
  at::manual_seed(3);
  std::optional<Session> session(std::in_place, options);
  nn::Sequential net = make_net(shape.channels);
  net->to(at::Device("cuda:0"));
  Adam adam(net->parameters(), {.lr = 1e-2, .group_bytes = 1 << 16});
  const int64_t edge = shape.edge;
  const at::Tensor input = at::randn({1, shape.channels, edge, edge, edge}).to(at::Device("cuda:0"));
  const at::Tensor target = at::rand({1, 2, edge, edge, edge}).gt(0.5).to(at::kFloat).to(at::Device("cuda:0"));
  for (int i = 0; i < steps; ++i) {
    Session::Step step = session->step();
    at::Tensor loss = at::binary_cross_entropy_with_logits(net->forward(input), target);
    loss.backward();
    adam.step();
    adam.zero_grad();
    result.losses.push_back(loss.item<double>());
    step.finish();
  }
  result.stats = session->stats();
  result.floor_bytes = session->trace()->floor_bytes();
  result.library_bytes = open_device("cuda").library_bytes();
  result.operators_traced = static_cast<int64_t>(session->trace()->operators.size());
  session.reset();
  for (const at::Tensor& p : net->parameters()) result.weights.push_back(p.detach().cpu());
  return result;
}

void expect_equal(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << "weight " << i;
}

TEST_F(GpuTest, BackwardIsPartOfTheTrace) {
  const Result unlimited = train({});
  // There are six blocks of three, a head and a loss. Backward and the optimizer at least double them.
  EXPECT_GT(unlimited.operators_traced, 2 * 20);
}

TEST_F(GpuTest, EveryBudgetGivesTheSameBitsWithinIt) {
  const Result unlimited = train({});
  EXPECT_EQ(unlimited.stats.pager.page_outs, 0);
  for (int64_t percent : {90, 60}) {
    const int64_t budget = unlimited.budget(percent);
    const Result limited = train({.budget_bytes = budget});
    expect_equal(limited, unlimited);
    EXPECT_LE(limited.stats.peak_bytes, budget);
    EXPECT_GT(limited.stats.pager.page_ins, 0);
  }
}

TEST_F(GpuTest, OnDemandGivesTheSameBits) {
  const Result unlimited = train({});
  expect_equal(train({.budget_bytes = unlimited.budget(60), .prefetch = false}), unlimited);
}

TEST_F(GpuTest, EvictingEverythingAfterEveryOperatorChangesNothing) {
  const Result unlimited = train({}, 2);
  expect_equal(train({.min_page_bytes = 1, .observer = std::make_shared<testing::EvictEverything>()}, 2), unlimited);
}

TEST_F(GpuTest, WindowsGiveTheSameBitsUnderEveryBudget) {
  constexpr int64_t kSplit = 1 << 20;
  const Result unlimited = train({.split_bytes = kSplit});
  const int64_t budget = unlimited.budget(50);
  const Result limited = train({.budget_bytes = budget, .split_bytes = kSplit});
  expect_equal(limited, unlimited);
  EXPECT_LE(limited.stats.peak_bytes, budget);
  expect_equal(
      train({.min_page_bytes = 1, .split_bytes = kSplit, .observer = std::make_shared<testing::EvictEverything>()}, 2),
      train({.split_bytes = kSplit}, 2));
}

TEST_F(GpuTest, WindowsAtOddOffsetsGiveTheSameBitsUnderEveryBudget) {
  constexpr int64_t kSplit = 1 << 20;
  constexpr Shape kOdd{.channels = 3, .edge = 51};
  const Result unlimited = train({.split_bytes = kSplit}, 4, kOdd);
  expect_equal(train({.budget_bytes = unlimited.budget(50), .split_bytes = kSplit}, 4, kOdd), unlimited);
}

TEST_F(GpuTest, WhatIsReplayedIsTheSame) {
  const Result unlimited = train({}, 6);
  const int64_t budget = unlimited.budget(60);
  expect_equal(train({.budget_bytes = budget}, 6), unlimited);
  expect_equal(train({.budget_bytes = budget, .replay = false}, 6), unlimited);
}

TEST_F(GpuTest, UnifiedMemoryGivesTheSameBitsAlsoBelowTheFloor) {
  SKIP_WITHOUT_UNIFIED();
  const Result expected = train({.split_bytes = kUnlimitedBytes});
  const Result unlimited = train({.engine = Engine::unified});
  expect_equal(unlimited, expected);
  EXPECT_EQ(unlimited.stats.pager.page_outs, 0);
  const int64_t budget = unlimited.budget(60);
  const Result limited = train({.engine = Engine::unified, .budget_bytes = budget});
  expect_equal(limited, expected);
  EXPECT_LE(limited.stats.peak_bytes, budget);
  EXPECT_GT(limited.stats.pager.page_ins, 0);
  const Result tiny = train({.engine = Engine::unified, .budget_bytes = unlimited.floor_bytes / 2});
  expect_equal(tiny, expected);
  EXPECT_GT(tiny.stats.peak_bytes, unlimited.floor_bytes / 2);
}

TEST_F(GpuTest, ATensorOfUnifiedMemoryCanBeReadByItsPointerWhereverItIs) {
  SKIP_WITHOUT_UNIFIED();
  Session session({.device = "cuda", .engine = Engine::unified});
  const at::Tensor tensor = at::arange(1 << 18, at::TensorOptions(at::Device("cuda:0")).dtype(at::kFloat));
  session.pager().evict_all();
  EXPECT_GT(session.stats().pager.parked_bytes, 0);
  EXPECT_NO_THROW((void)tensor.const_data_ptr());
  EXPECT_EQ(tensor.sum().item<float>(), at::arange(1 << 18).to(at::kFloat).sum().item<float>());
}

TEST_F(GpuTest, TwoSessionsShareAGpu) {
  const int64_t budget = open_device("cuda").ledger().used_bytes() + (64 << 20);
  Session first({.device = "cuda", .budget_bytes = budget});
  const at::Device place("cuda:0");
  float sums[2] = {0, 0};
  auto work = [&](Session& session, float& sum) {
    for (int i = 0; i < 3; ++i) {
      Session::Step step = session.step();
      at::Tensor x = at::ones({4 << 20}, at::TensorOptions(place)) * 2, y = x + 1;
      sum = (x * y).sum().item<float>();
      step.finish();
    }
  };
  std::thread other([&] {
    Session second({.device = "cuda", .budget_bytes = budget});
    work(second, sums[1]);
  });
  work(first, sums[0]);
  other.join();
  EXPECT_EQ(sums[0], 6.f * (4 << 20));
  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_LE(first.stats().peak_bytes, budget);
}

TEST_F(GpuTest, TensorsBornBeforeTheSessionAreMovedIntoCountedMemory) {
  at::Tensor early = at::arange(1 << 18, at::TensorOptions(at::Device("cuda:0")).dtype(at::kFloat));
  const at::Tensor expected = early.cpu();
  Session session({.device = "cuda"});
  early.add_(1);
  session.pager().evict_all();
  EXPECT_TRUE(at::equal(early.cpu(), expected + 1));
}

TEST_F(GpuTest, ASecondStreamInsideASessionIsRefused) {
  Session session({.device = "cuda"});
  at::Tensor made = at::zeros({1 << 16}, at::TensorOptions(at::Device("cuda:0")));
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  c10::StreamGuard other(cuda.getStreamFromGlobalPool(c10::Device(c10::kCUDA, 0)));
  EXPECT_THROW(made.mul_(2), std::exception) << "it takes no memory";
  EXPECT_THROW(at::empty({1 << 16}, at::TensorOptions(at::Device("cuda:0"))), std::exception);
}

TEST_F(GpuTest, TheBudgetIsOnlyTheGpus) {
  Session session({.device = "cuda", .budget_bytes = open_device("cuda").ledger().used_bytes() + (64 << 20)});
  const at::Tensor on_host = at::ones({64 << 20});
  EXPECT_EQ(on_host.sum().item<float>(), 64 << 20);
  EXPECT_THROW(at::empty({64 << 20}, at::TensorOptions(at::Device("cuda:0"))), OutOfBudget);
}

}  // namespace
}  // namespace spillway
