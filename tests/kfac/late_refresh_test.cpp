// Tests of refreshes whose work is done beside the steps (KfacOptions::curvature_delay).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.h"
#include "kfac/factors/packed_triangles.h"
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

/// Decides, before each step() and after each backward, which of the pieces that are ready are done, in their order.
using Policy = std::function<std::vector<size_t>(size_t ready)>;

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
    kfac_.refreshes().defer(policy_ != nullptr);
  }

  void step() {
    backward();
    average_gradients(*model_, comm_, 1);
    kfac_.step();
    sgd_.step();
    ++steps_;
    std::erase_if(waiting_, [&](const Waiting& refresh) { return refresh.step + kDelay < steps_; });
    work();
  }
  /// Begins a step, which is then forgotten. Of its own pieces only statistics are done.
  void skip() {
    const Policy policy = std::exchange(policy_, nullptr);
    backward();
    policy_ = policy;
    if (policy_) work(/*own_statistics_only=*/true);
    std::erase_if(waiting_, [&](const Waiting& refresh) { return refresh.step == steps_; });
    kfac_.discard();
  }
  void backward() {
    sgd_.zero_grad();
    for (int64_t m = 0; m < kMicroBatches; ++m) {
      const int64_t samples = share_.size(0) / kMicroBatches;
      const auto loss = model_->forward(share_.narrow(0, m * samples, samples)).pow(2).sum(1).mean() / kMicroBatches;
      kfac_.watch_stage(loss, {.count = samples, .micro_batch = m});
      loss.backward();
      seen_ = m + 1;
      work();
    }
  }

  Kfac& kfac() { return kfac_; }
  const Kfac& kfac() const { return kfac_; }
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
  void work(bool own_statistics_only = false) {
    if (!policy_) return;
    if ((seen_ == 1 || own_statistics_only) && (waiting_.empty() || waiting_.back().step != steps_)) {
      Waiting& refresh = waiting_.emplace_back(Waiting{steps_, {}});
      for (size_t k = 0; k < kfac_.refreshes().work(steps_, kMicroBatches).size(); ++k) refresh.pieces.push_back(k);
      if (refresh.pieces.empty()) waiting_.pop_back();
    }
    for (Waiting& refresh : waiting_) {
      const auto all = kfac_.refreshes().work(refresh.step, kMicroBatches);
      std::vector<size_t> ready;
      for (size_t k : refresh.pieces) {
        if (own_statistics_only && refresh.step == steps_ && all[k].what != What::statistics) continue;
        const bool is_seen = refresh.step < steps_ || seen_ == kMicroBatches ||
                             (all[k].what == What::statistics && all[k].micro_batch < seen_);
        if (is_seen) ready.push_back(k);
      }
      for (size_t chosen : policy_(ready.size()))  // a piece does those that it needs
        if (kfac_.refreshes().waits(refresh.step, ready[chosen]))
          kfac_.refreshes().run(refresh.step, kMicroBatches, ready[chosen]);
      std::erase_if(refresh.pieces, [&](size_t k) { return !kfac_.refreshes().waits(refresh.step, k); });
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

std::vector<size_t> numbers_up_to(size_t count) {
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

Policy never() {
  return [](size_t) { return std::vector<size_t>(); };
}
Policy at_once() {
  return numbers_up_to;
}
/// Does some pieces, in the order of the list.
Policy now_and_then(unsigned seed) {
  return [random = std::mt19937(seed)](size_t ready) mutable {
    return numbers_up_to(std::uniform_int_distribution<size_t>(0, ready)(random));
  };
}
/// Does some pieces in a random order.
Policy in_any_order(unsigned seed) {
  return [random = std::mt19937(seed)](size_t ready) mutable {
    auto all = numbers_up_to(ready);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(std::uniform_int_distribution<size_t>(0, ready)(random));
    return all;
  };
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

/// Returns options of every method, with whole renewals and with those in pieces.
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
  options.precompute_outer = true;
  all.emplace_back("leading eigenvectors with reciprocals", options);
  const size_t whole = all.size();
  for (int64_t columns : {5, 2})
    for (size_t i = 0; i < whole; ++i) {
      all.emplace_back(all[i].first + str(", panels of ", columns), all[i].second);
      all.back().second.panel_columns = columns;
    }
  return all;
}

TEST(LateRefreshTest, AStepThatIsForgottenLeavesNothingBehindAndTakesNothingOfOthers) {
  at::set_num_threads(1);
  for (const auto& [name, options] : every_method())
    for (const Policy& policy : {at_once(), never()}) {
      LateTraining training(options, {}, 1, policy);
      for (int i = 0; i < 13; ++i) {
        training.skip();
        training.step();
      }
      expect_same(training.weights(), trained(options, {}, 1, nullptr), name);
    }
}

TEST(LateRefreshTest, AStepWhoseStatisticsAreAveragedCannotBeForgotten) {
  LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, at_once());
  for (int i = 0; i < 4; ++i) training.step();
  training.backward();
  EXPECT_THROW(training.kfac().discard(), c10::Error);
}

TEST(LateRefreshTest, TellsTheBytesThatItKeepsForWorkThatWaits) {
  const auto kept = [](Policy policy) {
    LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, std::move(policy));
    for (int i = 0; i < 9; ++i) training.step();
    return training.kfac().refreshes().held_peak_bytes();
  };
  constexpr int64_t kSamples = kGlobalBatch / kMicroBatches;
  // Inputs and output gradients of the three layers, whose statistics are of steps 3, 4 and 5 of a cycle of 4.
  const int64_t first = (2 + 4) * 25 * kSamples * 4, second = (4 * 25 + 4 * 9) * kSamples * 4;
  const int64_t third = (4 * 9 + 3) * kSamples * 4;
  EXPECT_EQ(kept(at_once()), first);
  EXPECT_EQ(kept(never()), kMicroBatches * (first + second + third));
}

TEST(LateRefreshTest, NoBitDependsOnWhenTheWorkIsDone) {
  at::set_num_threads(1);
  for (const auto& [name, options] : every_method()) {
    const auto expected = trained(options, {}, 1, nullptr);
    expect_same(trained(options, {}, 1, never()), expected, name + ", as late as can be");
    expect_same(trained(options, {}, 1, at_once()), expected, name + ", as early as can be");
    for (unsigned seed = 0; seed < 3; ++seed) {
      expect_same(trained(options, {}, 1, now_and_then(seed)), expected, name + ", now and then");
      expect_same(trained(options, {}, 1, in_any_order(seed)), expected, name + ", in any order");
    }
  }
}

TEST(LateRefreshTest, NorUnderAnyStrategyOnSeveralRanks) {
  auto strategies = exact_strategies(2);
  const size_t whole = strategies.size();
  for (size_t i = 0; i < whole; ++i) {
    strategies.push_back(strategies[i]);
    strategies.back().method = Method::pi;
    strategies.back().panel_columns = 5;
  }
  for (const auto& asked : strategies) {
    auto options = late(asked);
    options.factor_interval = options.inverse_interval = 1;
    std::vector<std::vector<at::Tensor>> expected(2);
    on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
      expected[static_cast<size_t>(rank)] = trained(options, comm, 2, nullptr);
    });
    for (unsigned seed = 0; seed < 3; ++seed)
      on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
        expect_same(trained(options, comm, 2, in_any_order(seed)), expected[static_cast<size_t>(rank)],
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
    for (size_t i = 0; i < 3; ++i) before.push_back(training.kfac().state().inverse(i)[2].clone());
    training.step();
    for (size_t i = 0; i < 3; ++i) {
      const int64_t taken = now - kDelay;
      const bool changes = now == 0 || (taken > 0 && taken % kInterval == slots[i]);
      EXPECT_EQ(!training.kfac().state().inverse(i)[2].equal(before[i]), changes) << now << ' ' << i;
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
      LateTraining first(options, {}, 1, in_any_order(3));
      for (int i = 0; i < saved; ++i) first.step();
      const auto state = first.kfac().state_dict();
      first.forget();
      LateTraining second(options, {}, 1, in_any_order(4));
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
  auto options = late(options_for(Strategy::hybrid));
  options.method = Method::plain;
  options.panel_columns = 2;
  const auto expected = trained(options, {}, 1, nullptr, 6);
  LateTraining training(options, {}, 1, never());
  for (int64_t now = 0; now < 6; ++now) {
    training.step();
    const auto all = training.kfac().refreshes().work(now, kMicroBatches);
    if (all.empty()) continue;
    training.kfac().refreshes().run(now, kMicroBatches, all.size() - 1);
    for (size_t k = 0; k < all.size(); ++k) {
      const bool is_needed =
          all[k].layers == all.back().layers && (all[k].what != What::renew || all[k].index == all.back().index);
      EXPECT_EQ(training.kfac().refreshes().waits(now, k), !is_needed) << describe(all[k]);
    }
  }
  expect_same(training.weights(), expected, "by the last pieces");
}

TEST(LateRefreshTest, ARenewalThatIsLongHasSeveralPieces) {
  auto options = late(options_for(Strategy::hybrid));
  options.method = Method::pi;
  options.panel_columns = 8;
  const LateTraining training(options, {}, 1, never());
  const auto all = training.kfac().refreshes().work(3, kMicroBatches);  // of the Linear layer, with sides 37 and 3
  std::vector<int64_t> pieces(2);
  std::string last;
  for (const RefreshWork& work : all) {
    if (work.what != What::renew) continue;
    EXPECT_EQ(work.piece, pieces.at(work.index)++);
    last = describe(work);
  }
  EXPECT_EQ(pieces, (std::vector<int64_t>{15, 1}));
  EXPECT_EQ(last, "renewal of group 1, piece 0");
}

TEST(LateRefreshTest, RanksHaveThePiecesOfTheOneThatHasMost) {
  auto options = late(options_for(Strategy::comm_opt));
  options.method = Method::pi;
  options.panel_columns = 5;
  std::vector<std::vector<RefreshWork>> of_ranks(2);
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    const LateTraining training(options, comm, 2, never());
    of_ranks[static_cast<size_t>(rank)] = training.kfac().refreshes().work(3, kMicroBatches);
  });
  ASSERT_EQ(of_ranks[0].size(), of_ranks[1].size());
  std::vector<size_t> own(2);
  for (size_t k = 0; k < of_ranks[0].size(); ++k) {
    const RefreshWork &one = of_ranks[0][k], &other = of_ranks[1][k];
    EXPECT_EQ(describe(one), describe(other));
    EXPECT_EQ(needs_of(of_ranks[0], k, 2), needs_of(of_ranks[1], k, 2)) << describe(one);
    if (one.what == What::renew) own[0] += !one.layers.empty(), own[1] += !other.layers.empty();
  }
  EXPECT_EQ(std::max(own[0], own[1]), 24) << "the input's factor of side 37 has 8 panels";
  EXPECT_EQ(std::min(own[0], own[1]), 1);
}

TEST(LateRefreshTest, AFactorThatIsNotPositiveDefiniteKeepsTheLastInverseAndIsCounted) {
  for (int64_t columns : {kPanelColumns, int64_t{5}}) {
    auto options = late(options_for(Strategy::hybrid));
    options.method = Method::plain;
    options.panel_columns = columns;
    LateTraining training(options, {}, 1, in_any_order(5));
    for (int i = 0; i < 3; ++i) training.step();
    const auto before = training.kfac().state().inverse(2)[0].clone(),
               other = training.kfac().state().inverse(2)[1].clone();
    // Its eigenvalues are 1 − 5 and one that is large.
    const auto indefinite = at::full({1, 37, 37}, 5.0F) - 4 * at::eye(37);
    pack_triangles({indefinite}, training.kfac().state().held_factors(2)[0].view(-1).narrow(0, 0, 37 * 38 / 2));
    for (int i = 3; i < 6; ++i) training.step();  // statistics of step 3
    EXPECT_EQ(training.kfac().counters().failed_decompositions, 1) << columns;
    EXPECT_TRUE(training.kfac().state().inverse(2)[0].equal(before)) << columns;
    EXPECT_FALSE(training.kfac().state().inverse(2)[1].equal(other)) << columns;
  }
}

TEST(LateRefreshTest, PiecesAreTimed) {
  auto options = late(options_for(Strategy::hybrid));
  options.method = Method::pi;
  options.panel_columns = 5;
  LateTraining training(options, {}, 1, at_once());
  EXPECT_TRUE(training.kfac().refreshes().seconds(4).empty());
  for (int i = 0; i < 8; ++i) training.step();
  const auto seconds = training.kfac().refreshes().seconds(4);
  EXPECT_EQ(seconds.size(), training.kfac().refreshes().work(4, kMicroBatches).size());
  for (double one : seconds) EXPECT_GT(one, 0);
  EXPECT_EQ(training.kfac().refreshes().cycle_length(), kInterval);
  training.kfac().refreshes().forget_seconds();
  EXPECT_TRUE(training.kfac().refreshes().seconds(4).empty());
  for (int i = 8; i < 16; ++i) training.step();
  EXPECT_EQ(training.kfac().refreshes().seconds(4).size(), seconds.size());
}

TEST(LateRefreshTest, PiecesThatWereDoneBeforeACheckpointHaveNoTime) {
  const auto options = late(options_for(Strategy::hybrid));
  LateTraining first(options, {}, 1, at_once());
  for (int i = 0; i < 6; ++i) first.step();
  LateTraining second(options, {}, 1, at_once());
  second.load(first.kfac().state_dict(), first.weights(), 6);  // the refresh of step 5 is open
  for (int i = 6; i < 8; ++i) second.step();
  EXPECT_TRUE(second.kfac().refreshes().seconds(5).empty());
  for (int i = 8; i < 12; ++i) second.step();
  for (double one : second.kfac().refreshes().seconds(5)) EXPECT_GT(one, 0);
  EXPECT_FALSE(second.kfac().refreshes().seconds(5).empty());
}

TEST(LateRefreshTest, RefusesDelaysThatAreTooLongAndPanelsWithoutColumns) {
  expect_refusal([] { Kfac(*small_model(), late(options_for(Strategy::hybrid), kInterval)); },
                 {"curvature_delay", "4", "less than the interval of layer '0', 4"});
  auto options = options_for(Strategy::hybrid);
  options.curvature_delay = 1;
  expect_refusal([&] { Kfac(*small_model(), options); }, {"curvature_delay", "0 steps without layer_curvature"});
  options.curvature_delay = 0;
  options.panel_columns = 0;
  expect_refusal([&] { Kfac(*small_model(), options); }, {"panel_columns", "0", "1 and more"});
}

TEST(LateRefreshTest, RefusesPiecesThatAreDoneOrNotOpen) {
  LateTraining training(late(options_for(Strategy::hybrid)), {}, 1, never());
  training.step();
  EXPECT_THROW(training.kfac().refreshes().run(1, kMicroBatches, 0), c10::Error);
  training.step();
  training.kfac().refreshes().run(1, kMicroBatches, 0);
  EXPECT_THROW(training.kfac().refreshes().run(1, kMicroBatches, 0), c10::Error);
  EXPECT_THROW(training.kfac().refreshes().run(1, kMicroBatches, 1000), c10::Error);
}

}  // namespace
}  // namespace spillway::kfac
