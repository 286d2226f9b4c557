#include "kfac/plan/curvature_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/error.h"
#include "kfac/plan/update_cycle.h"

namespace spillway::kfac {
namespace {

LayerCurvature every(int64_t interval, int64_t slot) {
  return {.layer = "layer " + std::to_string(slot), .interval = interval, .slot = slot};
}

LayerShape convolution(const std::string& name, int64_t in, int64_t out) {
  return {.name = name,
          .kind = LayerKind::conv3d,
          .out = out,
          .in = in,
          .kernel = {3, 3, 3},
          .bias = false,
          .inverse = {.rank = EigenRank::automatic()}};
}

LayerShape linear(const std::string& name, int64_t in, int64_t out) {
  return {.name = name, .out = out, .in = in, .inverse = {.rank = EigenRank::automatic()}};
}

// A network whose first layers have many positions, and its last ones wide matrices.
CurvatureInputs network(double time_share) {
  return {.layers = {convolution("wide", 4, 8), convolution("middle", 16, 32), convolution("deep", 32, 64),
                     convolution("deeper", 32, 320), linear("head", 640, 320)},
          .positions = {40000, 6000, 1000, 1000, 256},
          .time_share = time_share};
}

double first_order(const CurvatureInputs& inputs) {
  double sum = 0;
  for (size_t i = 0; i < inputs.layers.size(); ++i) sum += first_order_work(inputs.layers[i], inputs.positions[i]);
  return sum;
}

double counted(const CurvatureInputs& inputs, const std::vector<LayerCurvature>& layers) {
  double sum = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    sum += curvature_work(inputs.layers[i], inputs.positions[i], layers[i]).per_step(layers[i].interval);
  return sum / first_order(inputs);
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "nothing was refused";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(UpdateCycleTest, RenewsAllLayersInTheFirstStepAndEachOncePerInterval) {
  const std::vector<LayerCurvature> layers{every(2, 1), every(3, 0), every(6, 5), every(1, 0)};
  const UpdateCycle cycle(layers);
  EXPECT_EQ(cycle.set_of(0), 0U);
  EXPECT_EQ(cycle.sets()[0], (std::vector<size_t>{0, 1, 2, 3}));
  for (int64_t step = 1; step < 50; ++step) {
    std::vector<size_t> due;
    for (size_t i = 0; i < layers.size(); ++i)
      if (layers[i].is_due(step)) due.push_back(i);
    EXPECT_EQ(cycle.sets()[cycle.set_of(step)], due) << step;
  }
}

TEST(UpdateCycleTest, NamesStepsThatDoTheSameWorkAlikeAndOthersApart) {
  const UpdateCycle cycle({every(4, 0), every(4, 0), every(4, 2)});
  std::map<std::string, std::set<std::vector<size_t>>> work;
  for (int64_t step = 0; step < 12; ++step) {
    const size_t set = cycle.set_of(step);
    work[std::string(cycle.kind(set))].insert(cycle.sets()[set]);
  }
  EXPECT_EQ(work.size(), 4U);
  for (const auto& [kind, sets] : work) EXPECT_EQ(sets.size(), 1U) << kind;
  EXPECT_TRUE(work.contains("plain"));
  EXPECT_TRUE(work.contains("factor+decompose"));
  EXPECT_EQ(UpdateCycle(7).kind(UpdateCycle(7).set_of(123)), "factor+decompose");
}

TEST(LayerCurvatureTest, RefusesIntervalsAndSlotsThatLeaveNoStep) {
  EXPECT_TRUE(contains(refusal([] { validate({every(0, 0)}); }), "interval of layer 'layer 0' is 0"));
  EXPECT_TRUE(contains(refusal([] { validate({every(3, 3)}); }), "slot of layer 'layer 3' is 3, outside 0 to 2"));
  EXPECT_TRUE(contains(refusal([] { validate({every(3, -1)}); }), "slot"));
  EXPECT_TRUE(contains(refusal([] { validate({every(1021, 0), every(7, 0)}); }), "cycle"));
  validate({every(1024, 3), every(512, 0)});
}

TEST(CurvaturePlanTest, LeavesOptionsAloneWhereTheShareIsAmple) {
  const auto plan = plan_curvature(network(1), {});
  for (const auto& layer : plan.layers) {
    EXPECT_EQ(layer.samples, FactorSamples::automatic()) << layer.layer;
    EXPECT_EQ(layer.rank, EigenRank::automatic()) << layer.layer;
    EXPECT_EQ(layer.interval, 3) << layer.layer;
  }
  EXPECT_LT(plan.time_share, 1);
}

TEST(CurvaturePlanTest, CountsNoMoreWorkThanTheShareUntilNoPlanHasLess) {
  const double ample = plan_curvature(network(1), {}).time_share;
  double least = ample, last = ample;
  for (double share = ample; share > 1e-4; share *= 0.8) {
    const auto plan = plan_curvature(network(share), {});
    EXPECT_NEAR(plan.time_share, counted(network(share), plan.layers), 1e-12);
    EXPECT_LE(plan.time_share, last) << "a smaller share means no more work";
    last = plan.time_share;
    if (plan.time_share > share) least = std::min(least, plan.time_share);
  }
  EXPECT_LT(last, ample / 4);
  EXPECT_EQ(last, least) << "below it, all shares have the plan of least work";
}

TEST(CurvaturePlanTest, StretchesIntervalsOnlyWhenRowsAndRanksAreUsedUp) {
  const auto least = plan_curvature(network(1e-6), {});
  for (double share = 0.5; share > 1e-3; share *= 0.9) {
    const auto plan = plan_curvature(network(share), {});
    const bool stretched = std::any_of(plan.layers.begin(), plan.layers.end(),
                                       [](const LayerCurvature& layer) { return layer.interval > 3; });
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      EXPECT_LE(plan.layers[i].interval, 3 * kMaxStretch);
      if (!stretched) continue;
      EXPECT_EQ(plan.layers[i].samples, least.layers[i].samples) << share;
      EXPECT_EQ(plan.layers[i].rank, least.layers[i].rank) << share;
    }
  }
}

TEST(CurvaturePlanTest, SparesTheRowsOfLinearLayersAndWhateverIsNoDefault) {
  const auto least = plan_curvature(network(1e-6), {});
  EXPECT_EQ(least.layers.back().samples, FactorSamples::automatic()) << "rows of a Linear layer are samples";
  EXPECT_NE(least.layers[2].samples, FactorSamples::automatic());
  const auto chosen = plan_curvature(network(1e-6), {.factor_interval = 5,
                                                     .inverse_interval = 5,
                                                     .factor_samples = FactorSamples::exact(),
                                                     .eigen_rank = EigenRank::of(40)});
  for (const auto& layer : chosen.layers) {
    EXPECT_EQ(layer.samples, FactorSamples::exact());
    EXPECT_EQ(layer.rank, EigenRank::of(40));
    EXPECT_EQ(layer.interval, 20);
  }
}

TEST(CurvaturePlanTest, SpreadsUpdatesSoThatNoStepIsASpike) {
  CurvatureInputs inputs{.layers = {}, .positions = {}, .time_share = 1};
  for (int i = 0; i < 24; ++i) {
    inputs.layers.push_back(convolution("layer " + std::to_string(i), 8 + 2 * (i % 4), 16));
    inputs.positions.push_back(2000);
  }
  const auto plan = plan_curvature(inputs, {});
  std::vector<double> load(3, 0.0);
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const auto work = curvature_work(inputs.layers[i], inputs.positions[i], plan.layers[i]);
    load.at(plan.layers[i].slot) += work.factors + work.decomposition;
  }
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  EXPECT_LT(*most, 1.1 * *least);
}

TEST(CurvaturePlanTest, SharesDecompositionsOverTheRanks) {
  auto inputs = network(1);
  const double alone = plan_curvature(inputs, {}).time_share;
  inputs.world = 8;
  EXPECT_LT(plan_curvature(inputs, {}).time_share, alone);
}

TEST(CurvaturePlanTest, RefusesSharesAndIntervalsThatMeanNothing) {
  for (double share : {0.0, -0.1, 1.01, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_TRUE(contains(refusal([&] { plan_curvature(network(share), {}); }), "is outside (0, 1]")) << share;
  EXPECT_TRUE(contains(refusal([] { plan_curvature(network(1), {.factor_interval = 5, .inverse_interval = 10}); }),
                       "constant and equal intervals"));
  EXPECT_TRUE(contains(refusal([] { plan_curvature(network(1), {.factor_interval = harmonic(9, 9)}); }), "constant"));
  EXPECT_TRUE(contains(refusal([] { plan_curvature(network(1), {.burn_in = 3}); }), "burn_in = 3 is outside 0 steps"));
  EXPECT_TRUE(contains(refusal([] { plan_curvature(network(1), {.overlap_factors = true}); }), "overlap_factors"));
  EXPECT_TRUE(contains(refusal([] { plan_curvature(network(1), {.factor_interval = 2000, .inverse_interval = 2000}); }),
                       "interval of layer 'wide' is 2000, outside 1 to 1024"));
  auto short_of_one = network(1);
  short_of_one.positions.pop_back();
  EXPECT_TRUE(contains(refusal([&] { plan_curvature(short_of_one, {}); }), "positions of 4 layers"));
}

}  // namespace spillway::kfac
