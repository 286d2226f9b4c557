// Tests of replays in a Session: cheap producers run again, and no bit changes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <thread>

#include "swap/schedule/schedule.h"
#include "swap/session.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

/// A deep stack of convolution, norm and in-place activation with upsampling and concatenation. U-Nets save such
/// tensors.
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
      if (write_an_input && i == steps - 1) x.add_(1e-3);  // the first convolution saved it: autograd must notice
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

/// Returns options with slow lanes, so that copies cost more than running operators again.
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

/// Checks a step whose user stops half-way. It leaves discarded pages behind, and tensors that live on are whole.
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

/// A base of steps that make x cheaply and then fill the budget. They then use their tensors from the last to the
/// first, x at the end. The inputs of x are used all the time, so that they are resident.
struct Detour {
  static constexpr int64_t kElements = 256 << 10;
  static constexpr int kSteps = 6, kLast = kSteps - 1;

  virtual ~Detour() = default;
  virtual at::Tensor make(int step) = 0;
  virtual at::Tensor input() const = 0;
  /// Runs while x waits.
  virtual void meanwhile(int /*step*/, const at::Tensor& /*x*/) {}
  virtual std::vector<at::Tensor> state() { return {}; }

  Outcome run(SessionOptions options) {
    Outcome outcome;
    options.small_page_bytes = 0;
    {
      Session opened(options);
      session = &opened;
      for (int i = 0; i < kSteps; ++i) {
        if (i == kLast) outcome.schedule = *opened.schedule();  // the schedule that the last step follows
        auto step = opened.step();
        const at::Tensor x = make(i);
        std::vector<at::Tensor> rolled{roll(x)};  // not replayable
        while (rolled.size() < 8) rolled.push_back(roll(rolled.back()));
        meanwhile(i, x);
        double sum = 0;
        for (; !rolled.empty(); rolled.pop_back()) {
          rolled.back().mul_(input().view_as(rolled.back()));
          sum += rolled.back().select(0, 7).sum().item<double>();
        }
        outcome.losses.push_back(sum);
        outcome.losses.push_back(x.sum().item<double>());
        step.finish();
      }
      outcome.stats = opened.stats().pager;
      outcome.peak = opened.stats().peak_bytes;
    }
    outcome.weights = state();
    return outcome;
  }
  at::Tensor roll(const at::Tensor& t) const { return at::roll(t, {1}, {0}).add_(input().view_as(t)); }
  Session* session = nullptr;
};

/// Measured times decide which tensors are replayed, so on a busy machine a run may replay none. Some run must.
template <class D>
void expect_no_difference() {
  constexpr int kRuns = 5;
  at::manual_seed(5);
  const Outcome unlimited = D().run({});
  bool replayed = false;
  for (int i = 0; i < kRuns && !replayed; ++i) {
    at::manual_seed(5);
    const Outcome tight = D().run(slow(unlimited.peak * 6 / 10));
    expect_equal(tight, unlimited);
    replayed = !tight.schedule.replays.empty();
  }
  EXPECT_TRUE(replayed) << "nothing was to be made again in " << kRuns << " runs";
}

at::Tensor random_matrix() {
  return at::randn({64, Detour::kElements / 64});
}

struct Relu : Detour {
  at::Tensor make(int) override { return at::relu(a); }
  at::Tensor input() const override { return a; }
  const at::Tensor a = random_matrix();
};

TEST(ReplayTest, ACheapTensorThatWaitsBehindTheBudgetIsMadeAgain) {
  const Outcome unlimited = Relu().run({});
  EXPECT_GT(Relu().run(slow(unlimited.peak * 6 / 10)).stats.discards, 0);
}

TEST(ReplayTest, WritesThroughALentPointerAreNotLost) {
  struct Lent : Relu {
    at::Tensor make(int) override {
      auto x = at::relu(a);
      auto lent = resident(x);
      x.data_ptr<float>()[7] = 70;
      return x;
    }
  };
  expect_no_difference<Lent>();
}

TEST(ReplayTest, WritesBetweenTwoOperatorsThatMakeATensorAreNotLost) {
  struct Lent : Relu {
    at::Tensor make(int) override {
      auto x = at::relu(a);
      {
        auto lent = resident(x);
        x.data_ptr<float>()[7] = 70;
      }
      return x.mul_(2);
    }
  };
  expect_no_difference<Lent>();
}

TEST(ReplayTest, WritesOfAThreadThatEnteredAreNotLost) {
  struct Entering : Relu {
    at::Tensor make(int) override {
      auto x = at::relu(a);
      std::thread([&] {
        auto entry = session->enter();
        x.mul_(2);
      }).join();
      return x;
    }
  };
  expect_no_difference<Entering>();
}

TEST(ReplayTest, WritesThatWentElsewhereInEarlierStepsAreNotLost) {
  struct OtherData : Relu {
    at::Tensor make(int step) override {
      auto x = at::relu(a);
      (step == kLast ? x : w).mul_(2);
      return x;
    }
    const at::Tensor w = random_matrix();
  };
  expect_no_difference<OtherData>();
}

TEST(ReplayTest, OperatorsThatWriteAnotherTensorThanInEarlierStepsAreNotRunAgain) {
  struct OtherWay : Relu {
    at::Tensor make(int step) override {
      auto x = at::relu(a);
      if (step < kLast)
        x.add_(y);
      else
        y.add_(x);
      return x;
    }
    std::vector<at::Tensor> state() override { return {y}; }
    const at::Tensor y = random_matrix();
  };
  expect_no_difference<OtherWay>();
}

TEST(ReplayTest, RunningStatisticsThatCameLaterAreUpdatedOnce) {
  struct Norm : Detour {
    at::Tensor make(int step) override {
      const bool later = step == kLast;
      auto y = std::get<0>(at::native_batch_norm(a, {}, {}, later ? mean : at::Tensor(), later ? var : at::Tensor(),
                                                 /*training=*/true, 0.1, 1e-5));
      return y;
    }
    at::Tensor input() const override { return a; }
    std::vector<at::Tensor> state() override { return {mean, var}; }
    const at::Tensor a = at::randn({64, 2048, 2});
    const at::Tensor mean = at::zeros({2048}), var = at::ones({2048});
  };
  expect_no_difference<Norm>();
}

/// Checks a loader that fills the next batch into the same memory. Meanwhile the step still uses tensors made of the
/// current batch.
TEST(ReplayTest, AnInputThatIsLentForWritingIsNotReadAgain) {
  struct Loader : Detour {
    at::Tensor input() const override { return raw; }
    at::Tensor make(int step) override {
      if (!lent) {
        raw.fill_(0);  // makes it a page
        lent.emplace(resident(raw));
      }
      std::memset(raw.data_ptr(), step + 1, static_cast<size_t>(kElements));
      return raw.to(at::kFloat);
    }
    void meanwhile(int step, const at::Tensor&) override {
      std::memset(raw.data_ptr(), step + 2, static_cast<size_t>(kElements));
    }
    const at::Tensor raw = at::zeros({64, kElements / 64}, at::kByte);
    std::optional<Resident> lent;
  };
  expect_no_difference<Loader>();
}

/// Checks channels-last norms, which add up the sums of all threads.
TEST(ReplayTest, AnotherThreadMakesATensorWithTheThreadsThatTheFirstOneHad) {
  struct Norm : Detour {
    at::Tensor make(int) override {
      return std::get<0>(at::native_batch_norm(a, {}, {}, {}, {}, /*training=*/true, 0.1, 1e-5));
    }
    at::Tensor input() const override { return a; }
    void meanwhile(int, const at::Tensor& x) override {
      std::thread([&] {
        at::set_num_threads(1);
        auto entry = session->enter();
        values.push_back(x.select(0, 1).clone());
      }).join();
      at::set_num_threads(4);
    }
    std::vector<at::Tensor> state() override { return values; }
    const at::Tensor a = at::randn({64, 16, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast);
    std::vector<at::Tensor> values;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(4);
  expect_no_difference<Norm>();
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace spillway
