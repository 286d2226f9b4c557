// Replays in a Session: cheap producers run again, and no bit changes.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "swap/schedule.h"
#include "swap/session.h"
#include "tests/support/copies.h"

namespace spillway {
namespace {

/// A deep stack of convolution, norm and in-place activation with upsampling and concatenation: what U-Nets save.
struct Net {
  explicit Net(uint64_t seed) {
    at::manual_seed(seed);
    for (int i = 0; i < 4; ++i) {
      weights.push_back((at::randn({8, i == 3 ? 16 : 8, 3, 3}) * 0.2).requires_grad_());
      scales.push_back(at::ones({8}).requires_grad_());
      shifts.push_back(at::zeros({8}).requires_grad_());
    }
  }
  at::Tensor block(const at::Tensor& x, size_t i) const {
    auto y = at::conv2d(x, weights[i], {}, 1, 1);
    y = at::batch_norm(y, scales[i], shifts[i], {}, {}, true, 0, 1e-5, false);
    return at::leaky_relu_(y, 0.01);
  }
  at::Tensor loss(const at::Tensor& x) const {
    auto skip = block(x, 0);
    auto y = block(at::avg_pool2d(skip, 2), 1);
    y = block(at::upsample_nearest2d(y, {64, 64}), 2);
    y = block(at::cat({skip, y}, 1), 3);
    return (at::gelu(y) * at::sigmoid(y)).square().mean();
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> all = weights;
    all.insert(all.end(), scales.begin(), scales.end());
    all.insert(all.end(), shifts.begin(), shifts.end());
    return all;
  }
  std::vector<at::Tensor> weights, scales, shifts;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  PagerStats stats;
  Schedule schedule;
  int64_t peak = 0;
};

Outcome train(SessionOptions options, int steps = 5, bool write_an_input = false) {
  Outcome outcome;
  Net net(3);
  auto x = at::randn({1, 8, 64, 64});
  {
    options.min_page_bytes = 4096;
    options.small_page_bytes = 0;
    Session session(options);
    for (int i = 0; i < steps; ++i) {
      auto step = session.step();
      auto loss = net.loss(x);
      if (write_an_input && i == steps - 1) x.add_(1e-3);  // saved by the first convolution: autograd must notice
      loss.backward();
      at::NoGradGuard no_grad;
      for (at::Tensor& p : net.all()) {
        p.sub_(p.grad(), 0.1);
        p.mutable_grad().reset();
      }
      step.finish();
      outcome.losses.push_back(loss.item<double>());
    }
    outcome.stats = session.stats().pager;
    outcome.peak = session.stats().peak_bytes;
    outcome.schedule = *session.schedule();
  }
  outcome.weights = net.all();
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << "weight " << i;
}

/// Slow lanes, so that copies cost more than running operators again.
SessionOptions slow(int64_t budget) {
  return {.budget_bytes = budget, .decorate_timeline = [](std::unique_ptr<Timeline>, std::string_view lane) {
            return std::make_unique<testing::ThrottledTimeline>(std::string(lane), 100e6);
          }};
}

TEST(ReplayTest, CheapProducersRunAgainWhereCopiesAreSlowAndNoBitChanges) {
  const Outcome unlimited = train({});
  const Outcome tight = train(slow(unlimited.peak * 6 / 10));
  expect_equal(tight, unlimited);
  EXPECT_GT(tight.stats.replays, 0);
  EXPECT_EQ(tight.stats.replays, tight.stats.discards);
  EXPECT_LE(tight.peak, unlimited.peak * 6 / 10);
  EXPECT_FALSE(tight.schedule.replays.empty());
}

TEST(ReplayTest, CanBeTurnedOff) {
  const Outcome unlimited = train({});
  SessionOptions options = slow(unlimited.peak * 6 / 10);
  options.replay = false;
  const Outcome tight = train(options);
  expect_equal(tight, unlimited);
  EXPECT_EQ(tight.stats.replays, 0);
  EXPECT_TRUE(tight.schedule.replays.empty());
}

TEST(ReplayTest, ReplaysMoveFewerBytes) {
  const Outcome unlimited = train({});
  SessionOptions options = slow(unlimited.peak * 6 / 10);
  const Outcome with = train(options);
  options.replay = false;
  const Outcome without = train(options);
  EXPECT_LT(with.stats.bytes_out, without.stats.bytes_out);
}

/// A step whose user stops half-way leaves discarded pages behind; tensors that live on are whole.
TEST(ReplayTest, AnAbandonedStepLeavesNoTensorWithoutBytes) {
  const int64_t peak = train({}).peak;
  Net net(3);
  auto x = at::randn({1, 8, 64, 64});
  const at::Tensor expected = net.block(x, 0).detach().clone();
  SessionOptions options = slow(peak * 6 / 10);
  options.small_page_bytes = 0;
  at::Tensor kept;
  {
    Session session(options);
    for (int i = 0; i < 4; ++i) {
      auto step = session.step();
      auto skip = net.block(x, 0);
      auto y = at::upsample_nearest2d(net.block(at::avg_pool2d(skip, 2), 1), {64, 64});
      auto z = net.block(at::cat({skip, net.block(y, 2)}, 1), 3);
      kept = skip.detach();
      if (i < 3) z.mean().backward();
      step.finish();
    }
  }
  EXPECT_TRUE(at::equal(kept, expected));
}

TEST(ReplayTest, WritingWhatAReplayReadsIsStillAutogradsErrorAndNothingElse) {
  const Outcome unlimited = train({}, 3);
  EXPECT_THROW(train({}, 4, /*write_an_input=*/true), c10::Error);
  EXPECT_THROW(train(slow(unlimited.peak * 6 / 10), 4, /*write_an_input=*/true), c10::Error);
  expect_equal(train(slow(unlimited.peak * 6 / 10), 3), unlimited);
}

}  // namespace
}  // namespace spillway
