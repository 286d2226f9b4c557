// Tests of refreshes whose work is done beside the steps (KfacOptions::curvature_delay).
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "tests/kfac/rank_training.h"
#include "tests/support/refusal.h"

namespace spillway::kfac {
namespace {

using testing::expect_refusal;
using What = RefreshWork::What;

constexpr int64_t kMicroBatches = 3;
constexpr int64_t kInterval = 4;
constexpr int64_t kDelay = 2;

KfacOptions late(KfacOptions options, int64_t delay = kDelay, const std::vector<int64_t>& slots = {0, 1, 3}) {
  const char* names[] = {"0", "2", "5"};
  for (size_t i = 0; i < slots.size(); ++i)
    options.layer_curvature.push_back({.layer = names[i], .interval = kInterval, .slot = slots[i]});
  options.curvature_delay = delay;
  return options;
}

/// Decides, before each step() and after each backward, how many of the pieces that are ready are done.
using Policy = std::function<int(int ready)>;

/// A model in training by late refreshes.
class LateTraining {
 public:
  /// Without a policy, step() does all work at once.
  LateTraining(const KfacOptions& options, const ddl::Comm& comm, int64_t world, Policy policy)
      : kfac_(*model_, options, comm),
        comm_(comm),
        sgd_(model_->parameters(), torch::optim::SGDOptions(0.1)),
        share_(share_of({}, comm ? comm->communicator->rank() : 0, world)),
        policy_(std::move(policy)) {
    kfac_.defer(policy_ != nullptr);
  }

  void step() {
    sgd_.zero_grad();
    for (int64_t m = 0; m < kMicroBatches; ++m) {
      const int64_t samples = share_.size(0) / kMicroBatches;
      const auto loss = model_->forward(share_.narrow(0, m * samples, samples)).pow(2).sum(1).mean() / kMicroBatches;
      kfac_.watch_stage(loss, {.count = samples, .micro_batch = m});
      loss.backward();
      seen_ = m + 1;
      work();
    }
    average_gradients(*model_, comm_, 1);
    kfac_.step();
    sgd_.step();
    ++steps_;
    std::erase_if(waiting_, [&](const Waiting& refresh) { return refresh.step + kDelay < steps_; });
    work();
  }

  Kfac& kfac() { return kfac_; }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : model_->parameters()) all.push_back(parameter.detach().clone());
    return all;
  }
  void load(const StateDict& state, const std::vector<at::Tensor>& weights, int64_t steps) {
    at::NoGradGuard no_grad;
    const auto parameters = model_->parameters();
    for (size_t i = 0; i < weights.size(); ++i) parameters[i].copy_(weights[i]);
    kfac_.load_state_dict(state);
    steps_ = steps;
  }
  /// Forgets the pieces that wait, because the state's owner has done them.
  void forget() { waiting_.clear(); }

 private:
  struct Waiting {
    int64_t step;
    std::vector<size_t> pieces;
  };

  /// Does some of what is ready: all of earlier steps, and the statistics of this one's micro-batches so far.
  void work() {
    if (!policy_) return;
    if (seen_ == 1 && (waiting_.empty() || waiting_.back().step != steps_)) {
      Waiting& refresh = waiting_.emplace_back(Waiting{steps_, {}});
      for (size_t k = 0; k < kfac_.refresh_work(steps_, kMicroBatches).size(); ++k) refresh.pieces.push_back(k);
      if (refresh.pieces.empty()) waiting_.pop_back();
    }
    for (Waiting& refresh : waiting_) {
      const auto all = kfac_.refresh_work(refresh.step, kMicroBatches);
      int ready = 0;
      for (size_t k : refresh.pieces) {
        const bool is_seen = refresh.step < steps_ || seen_ == kMicroBatches ||
                             (all[k].what == What::statistics && all[k].micro_batch < seen_);
        if (!is_seen) break;
        ++ready;
      }
      const int count = policy_(ready);
      for (int i = 0; i < count; ++i) kfac_.run(refresh.step, kMicroBatches, refresh.pieces[static_cast<size_t>(i)]);
      refresh.pieces.erase(refresh.pieces.begin(), refresh.pieces.begin() + count);
    }
  }

  torch::nn::Sequential model_ = small_model();
  Kfac kfac_;
  ddl::Comm comm_;
  torch::optim::SGD sgd_;
  at::Tensor share_;
  Policy policy_;
  int64_t steps_ = 0, seen_ = 0;
  std::vector<Waiting> waiting_;
};

Policy never() {
  return [](int) { return 0; };
}
Policy at_once() {
  return [](int ready) { return ready; };
}
Policy now_and_then(unsigned seed) {
  return
      [random = std::mt19937(seed)](int ready) mutable { return std::uniform_int_distribution<int>(0, ready)(random); };
}

std::vector<at::Tensor> trained(const KfacOptions& options, const ddl::Comm& comm, int64_t world, Policy policy,
                                int steps = 13) {
  LateTraining training(options, comm, world, std::move(policy));
  for (int i = 0; i < steps; ++i) training.step();
  return training.weights();
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << what << ", parameter " << i;
}

/// Returns options of every method.
std::vector<std::pair<std::string, KfacOptions>> every_method() {
  std::vector<std::pair<std::string, KfacOptions>> all;
  const auto with = [&](const std::string& name, const std::function<void(KfacOptions&)>& change) {
    auto options = options_for(Strategy::hybrid);
    change(options);
    all.emplace_back(name, late(options));
  };
  with("eigen", [](auto&) {});
  with("pi", [](auto& o) { o.method = Method::pi; });
  with("plain", [](auto& o) { o.method = Method::plain; });
  with("reciprocals", [](auto& o) { o.precompute_outer = true; });
  with("warm starts", [](auto& o) { o.warm_start = 0.5; });
  with("16 bits", [](auto& o) { o.storage = FactorDtype::fp16; });
  with("separable", [](auto& o) { o.conv_factors = ConvFactors::separable; });
  auto truncated = options_for(Strategy::hybrid);
  auto options = late(truncated);
  for (auto& layer : options.layer_curvature) {
    layer.rank = EigenRank::of(3);
    layer.samples = FactorSamples::at_least(4);
  }
  all.emplace_back("leading eigenvectors", options);
  return all;
}

TEST(LateRefreshTest, NoBitDependsOnWhenTheWorkIsDone) {
  at::set_num_threads(1);
  for (const auto& [name, options] : every_method()) {
    const auto expected = trained(options, {}, 1, nullptr);
    expect_same(trained(options, {}, 1, never()), expected, name + ", as late as can be");
    expect_same(trained(options, {}, 1, at_once()), expected, name + ", as early as can be");
    for (unsigned seed = 0; seed < 5; ++seed)
      expect_same(trained(options, {}, 1, now_and_then(seed)), expected, name + ", now and then");
  }
}

TEST(LateRefreshTest, NorUnderAnyStrategyOnSeveralRanks) {
  for (const auto& asked : exact_strategies(2)) {
    auto options = late(asked);
    options.factor_interval = options.inverse_interval = 1;
    std::vector<std::vector<at::Tensor>> expected(2);
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      expected[static_cast<size_t>(rank)] = trained(options, comm, 2, nullptr);
    });
    for (unsigned seed = 0; seed < 3; ++seed)
      on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
        expect_same(trained(options, comm, 2, now_and_then(seed)), expected[static_cast<size_t>(rank)],
                    describe(options, 2));
      });
    expect_same(expected[0], expected[1], describe(options, 2));
  }
}

TEST(LateRefreshTest, TheNewInverseIsUsedAfterTheDelay) {
  LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, at_once());
  const std::vector<int64_t> slots{0, 1, 3};
  for (int64_t now = 0; now < 12; ++now) {
    std::vector<at::Tensor> before;
    for (size_t i = 0; i < 3; ++i) before.push_back(training.kfac().inverse(i)[2].clone());
    training.step();
    for (size_t i = 0; i < 3; ++i) {
      const int64_t taken = now - kDelay;
      const bool changes = now == 0 || (taken > 0 && taken % kInterval == slots[i]);
      EXPECT_EQ(!training.kfac().inverse(i)[2].equal(before[i]), changes) << now << ' ' << i;
    }
  }
}

TEST(LateRefreshTest, WithoutADelayItIsTheUsualRefresh) {
  const auto late_by_none = trained(late(options_for(Strategy::hybrid), 0), {}, 1, nullptr);
  const auto late_by_two = trained(late(options_for(Strategy::hybrid)), {}, 1, nullptr);
  EXPECT_FALSE(late_by_none[0].equal(late_by_two[0]));
}

TEST(LateRefreshTest, AStateInTheMidstOfARefreshGoesOnBitByBit) {
  at::set_num_threads(1);
  for (const auto& [name, options] : every_method())
    for (int saved : {1, 4, 6, 7}) {
      const auto expected = trained(options, {}, 1, nullptr, 12);
      LateTraining first(options, {}, 1, now_and_then(3));
      for (int i = 0; i < saved; ++i) first.step();
      const auto state = first.kfac().state_dict();
      first.forget();
      LateTraining second(options, {}, 1, now_and_then(4));
      second.load(state, first.weights(), saved);
      for (int i = saved; i < 12; ++i) {
        first.step();
        second.step();
      }
      expect_same(first.weights(), expected, name + ", that was saved");
      expect_same(second.weights(), expected, name + ", that was resumed");
    }
}

TEST(LateRefreshTest, APieceIsDoneAfterThoseThatItNeeds) {
  at::set_num_threads(1);
  const auto options = late(options_for(Strategy::hybrid));
  const auto expected = trained(options, {}, 1, nullptr, 6);
  LateTraining training(options, {}, 1, never());
  for (int64_t now = 0; now < 6; ++now) {
    training.step();
    const auto all = training.kfac().refresh_work(now, kMicroBatches);
    if (all.empty()) continue;
    training.kfac().run(now, kMicroBatches, all.size() - 1);
    for (size_t k = 0; k < all.size(); ++k) {
      const bool is_needed = all[k].layers == all.back().layers && (all[k].what != What::renew || k + 1 == all.size());
      EXPECT_EQ(training.kfac().waits(now, k), !is_needed) << describe(all[k]);
    }
  }
  expect_same(training.weights(), expected, "by the last pieces");
}

TEST(LateRefreshTest, PiecesAreTimed) {
  LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, at_once());
  EXPECT_TRUE(training.kfac().refresh_seconds(4).empty());
  for (int i = 0; i < 8; ++i) training.step();
  const auto seconds = training.kfac().refresh_seconds(4);
  EXPECT_EQ(seconds.size(), training.kfac().refresh_work(4, kMicroBatches).size());
  for (double one : seconds) EXPECT_GT(one, 0);
  EXPECT_EQ(training.kfac().cycle_length(), kInterval);
}

TEST(LateRefreshTest, RefusesDelaysThatAreTooLong) {
  expect_refusal([] { Kfac(*small_model(), late(options_for(Strategy::hybrid), kInterval)); },
                 {"curvature_delay", "4", "less than the interval of layer '0', 4"});
  auto options = options_for(Strategy::hybrid);
  options.curvature_delay = 1;
  expect_refusal([&] { Kfac(*small_model(), options); }, {"curvature_delay", "0 steps without layer_curvature"});
}

TEST(LateRefreshTest, RefusesPiecesThatAreDoneOrNotOpen) {
  LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, never());
  training.step();
  EXPECT_THROW(training.kfac().run(1, kMicroBatches, 0), c10::Error);
  training.step();
  training.kfac().run(1, kMicroBatches, 0);
  EXPECT_THROW(training.kfac().run(1, kMicroBatches, 0), c10::Error);
  EXPECT_THROW(training.kfac().run(1, kMicroBatches, 1000), c10::Error);
}

}  // namespace
}  // namespace spillway::kfac
