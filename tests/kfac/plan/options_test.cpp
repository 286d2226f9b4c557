#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "kfac/plan/adaptive_damping.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/factor_traffic.h"
#include "kfac/plan/place_factors.h"
#include "kfac/plan/strategy_choice.h"
#include "tests/kfac/shapes.h"

namespace spillway::kfac {
namespace {

std::vector<int64_t> owners(const std::vector<Assignment>& assignments) {
  std::vector<int64_t> all;
  for (const auto& layer : assignments) all.push_back(layer.owners.front());
  return all;
}

void expect_refused(const KfacOptions& options, const std::string& field) {
  try {
    options.validate();
    FAIL() << field << " was accepted";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
  }
}

}  // namespace

TEST(KfacOptionsTest, AcceptsItsDefaults) {
  EXPECT_NO_THROW(KfacOptions{}.validate());
}

TEST(KfacOptionsTest, NamesTheFieldThatIsOutOfRange) {
  expect_refused({.grad_worker_frac = 0}, "grad_worker_frac");
  expect_refused({.grad_worker_frac = 1.5}, "grad_worker_frac");
  expect_refused({.grad_worker_frac = std::nan("")}, "grad_worker_frac");
  expect_refused({.layer_grad_worker_fracs = {1, 0}}, "layer_grad_worker_fracs");
  expect_refused({.factor_interval = 0}, "factor_interval");
  expect_refused({.inverse_interval = 0}, "inverse_interval");
  expect_refused({.factor_interval = 2, .inverse_interval = 5}, "4 or 6");
  expect_refused({.factor_interval = 5, .inverse_interval = 2}, "the nearest is 5");
  expect_refused({.burn_in = -1}, "burn_in");
  expect_refused({.decay = 1}, "decay");
  expect_refused({.factor_samples = FactorSamples::at_least(0)}, "factor_samples");
  expect_refused({.eigen_rank = EigenRank::of(0)}, "eigen_rank");
  expect_refused({.method = Method::pi, .eigen_rank = EigenRank::of(8)}, "full with method pi");
  expect_refused({.eigen_rank = EigenRank::of(8), .warm_start = 0.1}, "full with warm_start");
  expect_refused({.eigen_rank = EigenRank::of(8), .staleness = 1}, "full with staleness");
  expect_refused({.warm_start = 1}, "warm_start");
  expect_refused({.inverse_interval = 3, .staleness = 4}, "staleness");
  expect_refused({.warm_start = 0.1, .staleness = 1}, "staleness");
  expect_refused({.method = Method::pi, .warm_start = 0.1}, "warm_start");
  expect_refused({.method = Method::plain, .staleness = 1}, "staleness");
  expect_refused({.relative_damping = 0}, "relative_damping");
  expect_refused({.damping_scope = DampingScope::layer, .damping = 0.1}, "damping_scope = layer is of no use");
  expect_refused({.damping = -1.0}, "damping");
  expect_refused({.damping = 0.0}, "damping");
  expect_refused({.damping = std::nan("")}, "damping");
  expect_refused({.method = Method::pi, .precompute_outer = true}, "precompute_outer");
  expect_refused({.kl_clip = 0}, "kl_clip");
  expect_refused({.norm_clip = 0}, "norm_clip");
  expect_refused({.norm_clip = -1}, "norm_clip");
  expect_refused({.lr = -1}, "lr");
  expect_refused({.max_factor_dim = 0}, "max_factor_dim");
  expect_refused({.max_linear_dim = 0}, "max_linear_dim");
  expect_refused({.patch_workspace_bytes = 1}, "patch_workspace_bytes");
  expect_refused({.skip = {"("}}, "skip");
}

TEST(KfacOptionsTest, DampsByTheNetworkUnlessAConventionOrAnAbsoluteDampingSaysOtherwise) {
  EXPECT_EQ(KfacOptions{}.damping_scope_in_use(), DampingScope::network);
  EXPECT_EQ(KfacOptions{}.at(0).relative_damping, 0.1);
  EXPECT_EQ((KfacOptions{.convention = Convention::kaisa}.damping_scope_in_use()), DampingScope::layer);
  EXPECT_EQ((KfacOptions{.damping = 0.1}.damping_scope_in_use()), DampingScope::layer);
  const KfacOptions layer{.damping_scope = DampingScope::layer};
  EXPECT_EQ(layer.at(0).relative_damping, 0.3);
  EXPECT_EQ((KfacOptions{.relative_damping = 0.2}.at(0).relative_damping), 0.2);
}

TEST(KfacOptionsTest, AnIntervalThatIsGivenMakesTheOtherOneConstant) {
  const auto at = [](const KfacOptions& options, int64_t step) {
    const StepNumbers now = options.at(step);
    return std::pair(now.factor_interval, now.inverse_interval);
  };
  EXPECT_EQ(at({}, kStartSteps - 1), std::pair(3.0, 3.0));
  EXPECT_EQ(at({}, kStartSteps), std::pair(10.0, 100.0));
  EXPECT_EQ(at({.factor_interval = 1}, kStartSteps), std::pair(1.0, 3.0));
  EXPECT_EQ(at({.inverse_interval = 6}, kStartSteps), std::pair(3.0, 6.0));
}

TEST(KfacOptionsTest, LetsTheClipBeSwitchedOff) {
  EXPECT_NO_THROW(KfacOptions{.kl_clip = std::numeric_limits<double>::infinity()}.validate());
}

TEST(KfacOptionsTest, NamesTheStepAtWhichAScheduleLeavesItsRange) {
  const KfacOptions options{.damping = decayed(0.1, {{7, -1}})};
  EXPECT_NO_THROW(options.validate());
  EXPECT_DOUBLE_EQ(*options.at(6).damping, 0.1);
  try {
    options.at(7);
    FAIL() << "a negative damping was accepted";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("at step 7 damping = -0.1"), std::string::npos) << error.what();
  }
}

TEST(ScheduledTest, MultipliesByTheFactorsOfTheStepsThatHaveCome) {
  const auto schedule = decayed(8, {{20, 0.5}, {10, 0.25}});
  EXPECT_DOUBLE_EQ(schedule.at(9), 8);
  EXPECT_DOUBLE_EQ(schedule.at(10), 2);
  EXPECT_DOUBLE_EQ(schedule.at(25), 1);
  EXPECT_DOUBLE_EQ(decayed(harmonic(6, 2), {{4, 10}}).at(4), 20) << "of another schedule";
}

TEST(KfacOptionsTest, ReadsTheNamesOfTheCommandLine) {
  for (auto strategy : {Strategy::comm_opt, Strategy::mem_opt, Strategy::hybrid, Strategy::dp, Strategy::owner_reduce,
                        Strategy::automatic})
    EXPECT_EQ(parse_strategy(name(strategy)), strategy);
  for (auto placement : {Placement::round_robin, Placement::lpt_time, Placement::lpt_memory, Placement::measured})
    EXPECT_EQ(parse_placement(name(placement)), placement);
  for (auto dtype : {FactorDtype::fp32, FactorDtype::bf16, FactorDtype::fp16})
    EXPECT_EQ(parse_factor_dtype(name(dtype)), dtype);
  for (auto form : {ConvFactors::full, ConvFactors::separable, ConvFactors::block, ConvFactors::automatic})
    EXPECT_EQ(parse_conv_factors(name(form)), form);
  for (auto method : {Method::eigen, Method::plain, Method::pi}) EXPECT_EQ(parse_method(name(method)), method);
  for (auto convention : {Convention::fisher, Convention::kaisa, Convention::dp_kfac})
    EXPECT_EQ(parse_convention(name(convention)), convention);
  for (auto scope : {DampingScope::layer, DampingScope::network}) EXPECT_EQ(parse_damping_scope(name(scope)), scope);
  EXPECT_THROW(parse_damping_scope("model"), BadRequest);
  EXPECT_THROW(parse_method("lu"), BadRequest);
  EXPECT_THROW(parse_convention("asdl"), BadRequest);
  EXPECT_THROW(parse_strategy("best"), BadRequest);
  EXPECT_THROW(parse_conv_factors("tridiagonal"), BadRequest);
  EXPECT_THROW(parse_placement("greedy"), BadRequest);
  EXPECT_THROW(parse_factor_dtype("fp8"), BadRequest);
}

TEST(AdaptiveDampingTest, PredictsWhatTheQuadraticModelSays) {
  // The model has one parameter: ∇ = 6, F̂ = 2, so V = 3 and ⟨V, ∇⟩ = 18. M(δ) − M(0) = 6δ + δ².
  const auto model = [](double delta) { return 6 * delta + delta * delta; };
  EXPECT_DOUBLE_EQ(predicted_reduction(18, 0.1), -model(-0.1 * 3));
  EXPECT_DOUBLE_EQ(predicted_reduction(18, 0.1 / 2), -model(-0.1 * 3 / 2)) << "nu = 1/2";
  EXPECT_EQ(predicted_reduction(0, 0.1), 0);
}

TEST(AdaptiveDampingTest, TrustsAGoodPredictionAndDistrustsABadOne) {
  EXPECT_DOUBLE_EQ(damping_change(0.8, 2), 0.95 * 0.95);
  EXPECT_EQ(damping_change(0.5, 2), 1);
  EXPECT_DOUBLE_EQ(damping_change(0.2, 2), 1 / (0.95 * 0.95));
  EXPECT_DOUBLE_EQ(damping_change(std::nan(""), 1), 1 / 0.95);
}

TEST(LayerShapeTest, CountsTheSidesOfItsFactors) {
  const auto full = conv3(8, 4, 1, true, false).factors();
  ASSERT_EQ(full.size(), 2u);
  EXPECT_EQ(full[0].side, 4 * 27 + 1);
  EXPECT_EQ(full[1].side, 8);
  const auto separable = conv3(8, 4, 2, true, true).factors();
  ASSERT_EQ(separable.size(), 3u);
  EXPECT_EQ(separable[0].side, 2);
  EXPECT_EQ(separable[1].side, 27);
  EXPECT_EQ(separable[2].side, 4);
  EXPECT_EQ(conv3(8, 4, 1, true, false).gradient_elements(), 8 * 109);
}

TEST(LayerShapeTest, GoesSeparableOnlyWhereThereIsSomethingToSeparate) {
  EXPECT_TRUE(is_separable(conv3(8, 4, 1, true, false), ConvFactors::separable, 1024));
  EXPECT_FALSE(is_separable(conv3(8, 4, 4, true, false), ConvFactors::separable, 1024)) << "one channel a group";
  EXPECT_FALSE(is_separable(linear(8, 4096), ConvFactors::separable, 1024)) << "one offset";
  EXPECT_FALSE(is_separable(conv3(8, 4, 1, true, false), ConvFactors::full, 1));
  EXPECT_FALSE(is_separable(conv3(8, 4, 1, true, false), ConvFactors::automatic, 109));
  EXPECT_TRUE(is_separable(conv3(8, 4, 1, true, false), ConvFactors::automatic, 108));
}

TEST(AssignmentTest, ReproducesTheGridOfKaisaFigure4) {
  // With W = 8 and f = 1/2 there are four workers, and each broadcasts to one receiver.
  const auto plan = assign({linear(4, 4), linear(3, 3)}, 8, spread(Strategy::hybrid, 0.5));
  EXPECT_EQ(plan[0].owners.front(), 0);
  EXPECT_EQ(plan[0].workers, (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(plan[0].worker_of, (std::vector<int64_t>{0, 0, 2, 2, 4, 4, 6, 6}));
  EXPECT_EQ(plan[1].owners.front(), 1);
  EXPECT_EQ(plan[1].workers, (std::vector<int64_t>{1, 3, 5, 7}));
  EXPECT_EQ(plan[1].worker_of, (std::vector<int64_t>{1, 1, 3, 3, 5, 5, 7, 7}));
  EXPECT_EQ(plan[1].served_by(5), (std::vector<int64_t>{4, 5}));
}

TEST(AssignmentTest, TurnsIntoCommOptAtOneAndMemOptAtOneOverWorld) {
  const std::vector<LayerShape> layers{linear(4, 4), linear(3, 3), linear(2, 2)};
  for (const auto& layer : assign(layers, 4, spread(Strategy::comm_opt, 1))) EXPECT_EQ(layer.workers.size(), 4u);
  const auto one = assign(layers, 4, spread(Strategy::mem_opt, 1));
  const auto quarter = assign(layers, 4, spread(Strategy::hybrid, 0.25));
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(one[i].workers, one[i].owners.empty() ? std::vector<int64_t>{} : std::vector<int64_t>{one[i].owners[0]});
    EXPECT_EQ(one[i].worker_of, quarter[i].worker_of);
    EXPECT_EQ(one[i].served_by(one[i].workers[0]).size(), 4u);
  }
}

TEST(AssignmentTest, PutsTheFactorsOfALayerOnDifferentRanksOnlyForCommOpt) {
  const std::vector<LayerShape> layers{linear(5, 5)};
  EXPECT_EQ(assign(layers, 2, spread(Strategy::comm_opt, 1))[0].owners, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(assign(layers, 2, spread(Strategy::hybrid, 1))[0].owners, (std::vector<int64_t>{0, 0}));
}

TEST(AssignmentTest, HasExactlyTheAskedWorkersInDisjointBalancedBlocksForEveryWorld) {
  std::vector<LayerShape> layers;
  for (int64_t i = 1; i <= 9; ++i) layers.push_back(linear(i, i));
  for (int64_t world = 1; world <= 9; ++world)
    for (int64_t count = 1; count <= world; ++count)
      for (const auto& layer :
           assign(layers, world, spread(Strategy::hybrid, static_cast<double>(count) / static_cast<double>(world)))) {
        ASSERT_EQ(static_cast<int64_t>(layer.workers.size()), count);
        ASSERT_TRUE(layer.is_worker(layer.owners.front()));
        ASSERT_TRUE(std::is_sorted(layer.workers.begin(), layer.workers.end()));
        int64_t served = 0;
        for (int64_t worker : layer.workers) {
          const auto size = static_cast<int64_t>(layer.served_by(worker).size());
          ASSERT_TRUE(size == world / count || size == (world + count - 1) / count);
          served += size;
        }
        ASSERT_EQ(served, world);
      }
}

TEST(AssignmentTest, PlacesLongestProcessingTimeFirst) {
  // The costs are 2·side³ with sides 1…6: 432 250 128 54 16 2. Two ranks get 432 | 250, +128, +54 = 432 | 432, +16 |
  // +2.
  const std::vector<LayerShape> layers{linear(1, 1), linear(2, 2), linear(3, 3),
                                       linear(4, 4), linear(5, 5), linear(6, 6)};
  EXPECT_EQ(owners(assign(layers, 2, spread(Strategy::hybrid, 1))), (std::vector<int64_t>{1, 0, 1, 1, 1, 0}));
}

TEST(AssignmentTest, StaysWithinGrahamsBoundOfTheBestMakespan) {
  const std::vector<LayerShape> layers{linear(7, 3), linear(5, 5), linear(6, 1), linear(4, 6),
                                       linear(2, 7), linear(3, 3), linear(5, 2)};
  std::vector<double> costs;
  for (const auto& layer : layers) {
    costs.push_back(0);
    for (const auto& factor : layer.factors()) costs.back() += decomposition_cost(factor);
  }
  for (int64_t world = 2; world <= 3; ++world) {
    const auto makespan = [&](const std::vector<int64_t>& ranks) {
      std::vector<double> load(static_cast<size_t>(world), 0);
      for (size_t i = 0; i < ranks.size(); ++i) load[static_cast<size_t>(ranks[i])] += costs[i];
      return *std::max_element(load.begin(), load.end());
    };
    double best = std::numeric_limits<double>::infinity();
    std::vector<int64_t> ranks(layers.size(), 0);
    std::function<void(size_t)> search = [&](size_t i) {
      if (i == ranks.size()) return void(best = std::min(best, makespan(ranks)));
      for (ranks[i] = 0; ranks[i] < world; ++ranks[i]) search(i + 1);
    };
    search(0);
    EXPECT_LE(makespan(owners(assign(layers, world, spread(Strategy::hybrid, 1)))),
              best * (4.0 / 3 - 1.0 / (3.0 * static_cast<double>(world))));
  }
}

TEST(AssignmentTest, RefusesAnEmptyWorld) {
  EXPECT_THROW(assign({linear(1, 1)}, 0, spread(Strategy::hybrid, 1)), BadRequest);
}

TEST(FactorBytesTest, IsFactorsEverywhereAndEigenbasesOnGradientWorkers) {
  const std::vector<LayerShape> layers{linear(3, 4, true), conv3(6, 4, 2, true, true)};
  const int64_t f0 = 5 * 5 + 3 * 3, e0 = f0 + 5 + 3;
  const int64_t f1 = 2 * (2 * 2 + 27 * 27 + 3 * 3), e1 = f1 + 2 * (2 + 27 + 3);
  const int64_t held = (5 * 6 + 3 * 4) / 2 + (2 * 3 + 27 * 28 + 3 * 4);  // triangles, two of each in the second layer
  const auto all = bytes_per_rank(layers, assign(layers, 2, spread(Strategy::hybrid, 1)));
  const int64_t scales = 3 * 5 + 2 * 3 * (27 * 2 + 1);
  EXPECT_EQ(
      all[0],
      (FactorBytes{.factors = 4 * held, .eigenbases = 4 * (e0 + e1), .scales = 4 * scales, .staged = 4 * (f0 + f1)}));
  EXPECT_EQ(all[0], all[1]);
  const auto half = bytes_per_rank(layers, assign(layers, 2, spread(Strategy::mem_opt, 1)), 8);
  EXPECT_EQ(half[0].eigenbases, 8 * e1) << "the costlier layer goes first, to rank 0";
  EXPECT_EQ(half[1].eigenbases, 8 * e0);
  EXPECT_EQ(half[0].factors, 8 * held);
}

TEST(FactorBytesTest, CountsWhatTheMethodHolds) {
  auto layer = conv3(6, 4, 2, true, false);  // sides 55 and 3, twice; the gradient is 6 × 55
  const int64_t matrices = 2 * (55 * 55 + 3 * 3);
  EXPECT_EQ(eigenbasis_elements(layer), matrices + 2 * (55 + 3));
  layer.inverse = {Method::eigen, true};
  EXPECT_EQ(eigenbasis_elements(layer), matrices + layer.gradient_elements());
  layer.inverse = {Method::pi};
  EXPECT_EQ(eigenbasis_elements(layer), matrices);
  layer.inverse = {Method::plain};
  EXPECT_EQ(eigenbasis_elements(layer), matrices);
  EXPECT_EQ(inverse_tensors(layer).at(1).name, "inverse1");
}

int64_t elements_of(const std::vector<HeldTensor>& tensors) {
  int64_t sum = 0;
  for (const HeldTensor& tensor : tensors) sum += tensor.elements();
  return sum;
}

TEST(FactorBytesTest, CountsScalesThatAreSmallBesideTheGradientOrFew) {
  auto layer = linear(1000, 999, true);
  EXPECT_EQ(elements_of(scale_tensors(layer)), 0) << "as many as the gradient has elements";
  layer.inverse.rank = EigenRank::of(300);
  EXPECT_EQ(elements_of(scale_tensors(layer)), 301 * 301);
  layer.inverse.precompute_outer = true;
  EXPECT_EQ(elements_of(scale_tensors(layer)), 301 * 301)
      << "the reciprocal is held, but not in the form of the products";
  layer = linear(256, 255, true);
  EXPECT_EQ(elements_of(scale_tensors(layer)), 256 * 256) << "few";
  layer.inverse.precompute_outer = true;
  EXPECT_EQ(elements_of(scale_tensors(layer)), 0) << "the reciprocal is what is held";
  layer.inverse = {.method = Method::pi};
  EXPECT_EQ(elements_of(scale_tensors(layer)), 0);
}

TEST(FactorBytesTest, CountsTheEigenvectorsOfTruncatedBases) {
  auto layer = conv3(6, 4, 2, true, false);  // sides 55 and 3, twice
  layer.inverse = {.rank = EigenRank::of(8)};
  EXPECT_EQ(eigenbasis_elements(layer), 2 * (55 * 8 + 9) + 2 * (3 * 3 + 3)) << "8 vectors, their values and the tail";
  layer.inverse = {.precompute_outer = true, .rank = EigenRank::of(8)};
  EXPECT_EQ(eigenbasis_elements(layer), 2 * (55 * 8) + 2 * (3 * 3) + 2 * (3 * 9));
  layer = conv3(6, 4, 2, true, true);  // C 2, K 27, G 3
  layer.inverse = {.rank = EigenRank::of(1)};
  EXPECT_EQ(eigenbasis_elements(layer), 2 * (2 * 2 + 2 + 27 * 27 + 27 + 3 * 1 + 2)) << "K is whole";
}

TEST(EigenRankTest, KeepsAllEigenvectorsOfASideThatIsNotThriceTheRank) {
  EXPECT_EQ(EigenRank::full().within(1000, true), 1000);
  EXPECT_EQ(EigenRank::of(8).within(23, true), 23);
  EXPECT_EQ(EigenRank::of(8).within(24, true), 8);
}

TEST(EigenRankTest, KeepsAutomaticallyAShareOfLargeSides) {
  for (bool is_convolution : {false, true}) EXPECT_EQ(EigenRank::automatic().within(191, is_convolution), 191);
  EXPECT_EQ(EigenRank::automatic().within(192, true), 64);
  EXPECT_EQ(EigenRank::automatic().within(3200, true), 200);
  EXPECT_EQ(EigenRank::automatic().within(192, false), 16);
  EXPECT_EQ(EigenRank::automatic().within(3200, false), 100);
}

TEST(EigenRankTest, AutomaticMeansFullBasesWhereAnOptionNeedsThem) {
  EXPECT_EQ(KfacOptions{}.rank_in_use(), EigenRank::automatic());
  for (const KfacOptions& options :
       {KfacOptions{.method = Method::pi}, KfacOptions{.warm_start = 0.1}, KfacOptions{.staleness = 1}}) {
    EXPECT_NO_THROW(options.validate());
    EXPECT_TRUE(options.rank_in_use().is_full());
  }
}

TEST(EigenRankTest, ReadsTheNamesThatItWrites) {
  for (const auto* text : {"full", "auto", "1", "64"}) EXPECT_EQ(name(parse_eigen_rank(text)), text);
  for (const auto* text : {"", "0", "-1", "most", "6.5", "1e9", "99999999999999999999"})
    EXPECT_THROW(parse_eigen_rank(text), BadRequest) << text;
}

TEST(FactorTrafficTest, SendsTheValuesToTheOwnerOfTheReciprocal) {
  auto layer = linear(3, 4, true);
  layer.inverse = {Method::eigen, true};
  const auto traffic = traffic_per_rank({layer}, assign({layer}, 2, spread(Strategy::comm_opt, 1)));
  EXPECT_EQ(traffic[0].eigenbases, 4 * (3 * 3 + 15)) << "rank 0 owns A and takes G's vectors and the reciprocal";
  EXPECT_EQ(traffic[1].eigenbases, 4 * (5 * 5 + 5)) << "A's vectors, and A's values to form it";
}

TEST(FactorBytesTest, FallsLinearlyWithTheShareOfGradientWorkers) {
  const std::vector<LayerShape> layers(8, linear(10, 20, true));
  const int64_t all_eigenbases = 8 * 4 * eigenbasis_elements(layers[0]);
  for (int64_t count : {1, 2, 4, 8})
    for (const auto& rank :
         bytes_per_rank(layers, assign(layers, 8, spread(Strategy::hybrid, static_cast<double>(count) / 8))))
      EXPECT_EQ(rank.eigenbases, all_eigenbases * count / 8);
}

}  // namespace spillway::kfac
