// Tests of decompositions that keep eigenvectors where they can, and of decompositions that run beside the steps.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "kfac/inverse/eigenbasis.h"
#include "tests/kfac/factors/layer_cases.h"
#include "tests/kfac/small_mlp.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

const double kNoClip = std::numeric_limits<double>::infinity();

const at::Tensor& batch() {
  static const auto x = at::randn({8, 4}, at::kDouble);
  return x;
}

// Runs one step that leaves the weights as they are. The loss grows with the step, which scales G.
void step(nn::Sequential model, Kfac& kfac, int i, const at::Tensor& x = batch()) {
  model->zero_grad();
  backward(kfac, mean_loss(model, x) * (i + 1), x.size(0));
  kfac.step();
}

}  // namespace

TEST(WarmStartTest, KeepsEigenvectorsWhereThatChangesThePreconditionedGradientLittle) {
  const auto x = at::randn({64, 130});
  const auto run = [&](double warm_start, bool outer) {
    torch::manual_seed(4);
    nn::Sequential model(nn::Linear(130, 140), nn::Tanh(), nn::Linear(140, 3));
    Kfac kfac(*model, {.precompute_outer = outer,
                       .factor_interval = 1,
                       .inverse_interval = 1,
                       .decay = 0.5,
                       .eigen_rank = EigenRank::full(),
                       .warm_start = warm_start,
                       .kl_clip = kNoClip});
    for (int i = 0; i < 3; ++i) step(model, kfac, i, x);
    return std::make_pair(gradients(*model), kfac.counters().warm_starts);
  };
  for (bool outer : {false, true}) {
    const auto [anew, none] = run(0, outer);
    const auto [warm, kept] = run(1e-2, outer);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(kept, 6) << "three factors have sides above 128, in two steps";
    for (size_t i = 0; i < anew.size(); ++i)
      EXPECT_LT((anew[i] - warm[i]).norm().item<double>(), 1e-4 * anew[i].norm().item<double>());
  }
}

TEST(StalenessTest, ServesEachDecompositionExactlyThatManyStepsAfterItsFactors) {
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 3, .burn_in = 100, .decay = 0.5, .staleness = 2});
  std::vector<at::Tensor> factors, served;
  std::vector<std::string> kinds;
  for (int i = 0; i < 9; ++i) {
    kinds.emplace_back(kfac.work().kind);
    step(model, kfac, i);
    factors.push_back(kfac.state().factor(0, 1).clone());
    const auto &vectors = kfac.state().inverse(0)[2], &values = kfac.state().inverse(0)[3];
    served.push_back((vectors * values.unsqueeze(1)).bmm(vectors.transpose(1, 2)));
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"factor+decompose", "factor", "factor", "factor+launch", "factor",
                                             "factor+decompose", "factor+launch", "factor", "factor+decompose"}));
  const std::vector<size_t> expected{0, 0, 0, 0, 0, 3, 3, 3, 6};
  for (size_t i = 0; i < served.size(); ++i)
    EXPECT_LT(largest_difference(served[i], factors[expected[i]]), 1e-12 * factors[i].abs().max().item<double>()) << i;
  EXPECT_EQ(kfac.counters().decompositions, 3);
}

TEST(StalenessTest, FollowsIntervalsThatChangeAndRefusesOnesThatBecomeShorterThanItself) {
  auto model = small_mlp();
  Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = decayed(2, {{3, 2}, {12, 0.25}}), .staleness = 2});
  std::vector<int> launched, served;
  for (int i = 0; i < 12; ++i) {
    if (kfac.work().launches) launched.push_back(i);
    if (kfac.work().decomposes) served.push_back(i);
    step(model, kfac, i);
  }
  EXPECT_EQ(launched, (std::vector<int>{2, 6, 10}));
  EXPECT_EQ(served, (std::vector<int>{0, 4, 8}));
  try {
    step(model, kfac, 12);
    ADD_FAILURE() << "an interval of 1";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("at step 12 staleness = 2"), std::string::npos) << error.what();
  }
}

TEST(StalenessTest, GivesTheSameGradientsWithReciprocalsFormedBeforehand) {
  std::vector<std::vector<at::Tensor>> all[2];
  for (bool outer : {false, true}) {
    auto model = small_mlp();
    Kfac kfac(*model, {.precompute_outer = outer, .factor_interval = 1, .inverse_interval = 3, .staleness = 2});
    for (int i = 0; i < 9; ++i) {
      step(model, kfac, i);
      all[outer].push_back(gradients(*model));
    }
  }
  for (size_t i = 0; i < all[0].size(); ++i)
    for (size_t p = 0; p < all[0][i].size(); ++p)
      EXPECT_LT(largest_difference(all[1][i][p], all[0][i][p]), 1e-9 * all[0][i][p].abs().max().item<double>()) << i;
}

TEST(StalenessTest, KeepsTheLastEigenbasisAndCountsWhereTheThreadFailed) {
  for (bool outer : {false, true}) {
    auto model = small_mlp();
    Kfac kfac(*model, {.precompute_outer = outer, .factor_interval = 1, .inverse_interval = 2, .staleness = 1});
    for (int i = 0; i < 3; ++i) step(model, kfac, i);
    const auto failed = kfac.state().inverse(0)[0].clone(), others = kfac.state().inverse(0).back().clone();
    kfac.state().pending_basis(0, 0).values.fill_(std::numeric_limits<double>::quiet_NaN());
    step(model, kfac, 3);
    EXPECT_EQ(kfac.counters().failed_decompositions, 1);
    EXPECT_TRUE(kfac.state().inverse(0)[0].equal(failed));
    EXPECT_FALSE(kfac.state().inverse(0).back().equal(others))
        << "those of G, or the reciprocals that they are part of";
    for (const auto& gradient : gradients(*model)) EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  }
}

TEST(StalenessTest, MayBeAWholeIntervalAndEndMeanwhile) {
  const auto x = at::randn({8, 300});
  nn::Sequential model(nn::Linear(300, 300));
  Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 1, .staleness = 1});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(kfac.work().kind, i == 0 ? "factor+decompose" : i == 1 ? "factor+launch" : "factor+decompose+launch");
    step(model, kfac, i, x);
  }
  EXPECT_EQ(kfac.counters().decompositions, 3);
  EXPECT_GT(kfac.usage().bytes.background, 2 * 300 * 300 * 4);
}

TEST(StalenessTest, ResumesWhileADecompositionIsUnderWay) {
  for (bool outer : {false, true}) {
    const KfacOptions options{
        .precompute_outer = outer, .factor_interval = 1, .inverse_interval = 3, .decay = 0.5, .staleness = 2};
    auto model = small_mlp();
    Kfac whole(*model, options);
    for (int i = 0; i < 4; ++i) step(model, whole, i);
    ASSERT_EQ(whole.work().kind, "factor") << "one was launched";
    Kfac resumed(*model, options);
    resumed.load_state_dict(whole.state_dict());
    for (int i = 4; i < 9; ++i) {
      step(model, whole, i);
      const auto expected = gradients(*model);
      step(model, resumed, i);
      for (size_t p = 0; p < expected.size(); ++p) EXPECT_TRUE(gradients(*model)[p].equal(expected[p])) << i;
    }
    EXPECT_EQ(resumed.counters().decompositions, whole.counters().decompositions);
  }
}

}  // namespace spillway::kfac
