#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/error.h"
#include "kfac/state_entry.h"
#include "tests/kfac/rank_training.h"

namespace spillway::kfac {
namespace {

/// A training that stops and goes on. Without momentum, its whole state is the weights and K-FAC's state.
struct Snapshot {
  std::vector<at::Tensor> weights;
  StateDict state;
};

Snapshot go_on(const std::optional<Snapshot>& from, int steps, const KfacOptions& options, const ddl::Comm& comm,
               int64_t rank, int64_t world) {
  at::NoGradGuard no_grad;
  auto model = small_model();
  Kfac kfac(*model, options, comm);
  if (from) {
    kfac.load_state_dict(from->state);
    for (size_t i = 0; i < from->weights.size(); ++i) model->parameters()[i].copy_(from->weights[i]);
  }
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto x = share_of({}, rank, world);
  for (int i = 0; i < steps; ++i) {
    at::AutoGradMode grad(true);
    take_step(model, kfac, sgd, x, comm);
  }
  Snapshot now{{}, kfac.state_dict()};
  for (const auto& parameter : model->parameters()) now.weights.push_back(parameter.detach().clone());
  return now;
}

std::vector<Snapshot> go_on(const std::optional<Snapshot>& from, int steps, const KfacOptions& options, int world) {
  std::vector<Snapshot> all(static_cast<size_t>(world));
  on_threads(std::vector<int>(static_cast<size_t>(world), 0), [&](const ddl::Comm& comm, int64_t rank) {
    all[static_cast<size_t>(rank)] = go_on(from, steps, options, comm, rank, world);
  });
  return all;
}

void expect_equal(const Snapshot& a, const Snapshot& b) {
  ASSERT_EQ(a.state.size(), b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) {
    EXPECT_EQ(a.state[i].first, b.state[i].first);
    EXPECT_TRUE(a.state[i].second.equal(b.state[i].second)) << a.state[i].first;
  }
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << "weight " << i;
}

/// Returns options with factors every second step and bases every fourth. Step 5 then lies in the middle of both
/// intervals.
KfacOptions sparse(Strategy strategy = Strategy::hybrid, double fraction = 1) {
  KfacOptions options = options_for(strategy, fraction);
  options.inverse_interval = 4;
  options.burn_in = 0;
  return options;
}

std::string refusal(Kfac& kfac, const StateDict& state) {
  try {
    kfac.load_state_dict(state);
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(KfacStateTest, GoesOnInTheMiddleOfAnIntervalBitByBit) {
  for (auto method : {Method::eigen, Method::pi})
    for (bool reciprocal : {false, true}) {
      if (reciprocal && method != Method::eigen) continue;
      KfacOptions options = sparse();
      options.method = method;
      options.precompute_outer = reciprocal;
      expect_equal(go_on(go_on({}, 5, options, {}, 0, 1), 6, options, {}, 0, 1), go_on({}, 11, options, {}, 0, 1));
    }
}

TEST(KfacStateTest, GoesOnWithTheLatticesThatAnUninterruptedTrainingDraws) {
  KfacOptions options = sparse();
  options.factor_samples = FactorSamples::at_least(30);
  const Snapshot whole = go_on({}, 11, options, {}, 0, 1);
  expect_equal(go_on(go_on({}, 5, options, {}, 0, 1), 6, options, {}, 0, 1), whole);
  options.seed = 1;
  EXPECT_FALSE(go_on({}, 11, options, {}, 0, 1).weights[0].equal(whole.weights[0])) << "another seed, other lattices";
}

TEST(KfacStateTest, GoesOnWithTheTruncatedEigenbasesOfTheLastDecomposition) {
  for (bool reciprocal : {false, true}) {
    KfacOptions options = sparse();
    options.eigen_rank = EigenRank::of(2);
    options.precompute_outer = reciprocal;
    expect_equal(go_on(go_on({}, 5, options, {}, 0, 1), 6, options, {}, 0, 1), go_on({}, 11, options, {}, 0, 1));
    EXPECT_THROW(go_on(go_on({}, 5, options, {}, 0, 1), 6, sparse(), {}, 0, 1), BadRequest) << "another rank";
  }
}

TEST(KfacStateTest, IsTheSameOnEveryRankWhoeverHoldsIt) {
  for (auto strategy : {Strategy::mem_opt, Strategy::owner_reduce, Strategy::dp}) {
    const KfacOptions options = sparse(strategy, 0.5);
    const auto ranks = go_on({}, 5, options, 2);
    expect_equal(ranks[0], ranks[1]);
    expect_equal(go_on(ranks[1], 6, options, 2)[0], go_on({}, 11, options, 2)[0]);
  }
}

TEST(KfacStateTest, GoesOnWhileDecompositionsAreUnderWayBesideTheSteps) {
  for (auto strategy : {Strategy::comm_opt, Strategy::mem_opt, Strategy::owner_reduce, Strategy::dp}) {
    KfacOptions options = sparse(strategy, 0.5);
    options.staleness = 3;
    const auto ranks = go_on({}, 6, options, 2);  // launched in step 4, for use in step 7
    expect_equal(ranks[0], ranks[1]);
    expect_equal(go_on(ranks[1], 6, options, 2)[0], go_on({}, 12, options, 2)[0]);
  }
}

TEST(KfacStateTest, GoesOnWithOtherRanksAndAnotherStrategy) {
  const Snapshot two = go_on({}, 5, sparse(Strategy::owner_reduce, 0.5), 2)[0];
  const Snapshot alone = go_on(two, 6, sparse(), {}, 0, 1);
  for (int world : {3, 4}) {
    const Snapshot many = go_on(two, 6, sparse(Strategy::mem_opt), world)[0];
    for (size_t i = 0; i < alone.weights.size(); ++i)
      EXPECT_TRUE(at::allclose(many.weights[i], alone.weights[i], 1e-3, 1e-4)) << world << " ranks, weight " << i;
  }
}

TEST(KfacStateTest, NamesTheFirstTensorOfAnotherModel) {
  const auto model = small_model();
  Kfac kfac(*model);
  const StateDict good = kfac.state_dict();
  torch::nn::Sequential other(torch::nn::Linear(3, 4));
  EXPECT_THAT(refusal(kfac, Kfac(*other).state_dict()),
              ::testing::HasSubstr("'0/factor0' is Float [1, 19, 10] here and"));
  StateDict bad = good;
  bad[1].first = "elsewhere";
  EXPECT_THAT(refusal(kfac, bad), ::testing::HasSubstr("'0/factor1' is expected where the state has 'elsewhere'"));
  bad = good;
  bad.resize(3);
  EXPECT_THAT(refusal(kfac, bad), ::testing::HasSubstr("the state ends after 3 tensors"));
  bad = good;
  bad.emplace_back("more", at::zeros({1}));
  EXPECT_THAT(refusal(kfac, bad), ::testing::HasSubstr("'more' has no place here"));
  EXPECT_EQ(refusal(kfac, good), "");
}

}  // namespace spillway::kfac
