// Tests of a Kfac whose layers are renewed in steps of their own.
#include <gtest/gtest.h>

#include <atomic>

#include "core/error.h"
#include "kfac/factors/capture.h"
#include "tests/kfac/rank_training.h"

namespace spillway::kfac {
namespace {

constexpr const char* kLayers[] = {"0", "2", "5"};

// Returns the curvature of small_model()'s layers, with one interval and the slots given.
std::vector<LayerCurvature> curvature(int64_t interval, const std::vector<int64_t>& slots) {
  std::vector<LayerCurvature> layers;
  for (size_t i = 0; i < slots.size(); ++i)
    layers.push_back({.layer = kLayers[i], .interval = interval, .slot = slots[i]});
  return layers;
}

KfacOptions planned(std::vector<LayerCurvature> layers, Strategy strategy = Strategy::hybrid, double fraction = 1) {
  auto options = options_for(strategy, fraction);
  options.layer_curvature = std::move(layers);
  return options;
}

at::Tensor loss_of(torch::nn::Sequential& model) {
  return model->forward(global_batch()).pow(2).sum(1).mean();
}

// Makes one step of gradient descent.
void step(Kfac& kfac, torch::nn::Sequential& model) {
  model->zero_grad();
  const auto loss = loss_of(model);
  kfac.watch(loss, kGlobalBatch);
  loss.backward();
  kfac.step();
  for (const auto& parameter : model->parameters()) parameter.data().sub_(parameter.grad(), 0.1);
}

std::string refusal(const KfacOptions& options) {
  try {
    Kfac(*small_model(), options);
  } catch (const BadRequest& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST(LayerCurvatureTest, IsTheUsualKfacWhereAllLayersAreRenewedTogether) {
  const auto usual = train(options_for(Strategy::hybrid), {}, 0, 1, {.steps = 7});
  expect_bit_equal(usual, train(planned(curvature(2, {0, 0, 0})), {}, 0, 1, {.steps = 7}), "interval 2, slot 0");
}

TEST(LayerCurvatureTest, RenewsEachLayerInItsOwnStepsOnly) {
  auto model = small_model();
  const auto layers = curvature(3, {0, 1, 2});
  Kfac kfac(*model, planned(layers));
  for (int64_t now = 0; now < 8; ++now) {
    std::vector<at::Tensor> factors, vectors;
    for (size_t i = 0; i < 3; ++i) {
      factors.push_back(kfac.state().factor(i, 1));  // G, because the first layer's A is that of the data in every step
      vectors.push_back(kfac.state().inverse(i)[2].clone());
    }
    step(kfac, model);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(!kfac.state().factor(i, 1).equal(factors[i]), layers[i].is_due(now)) << now << ' ' << i;
      EXPECT_EQ(!kfac.state().inverse(i)[2].equal(vectors[i]), layers[i].is_due(now)) << now << ' ' << i;
    }
  }
  EXPECT_EQ(kfac.counters().factor_updates, 8);
}

TEST(LayerCurvatureTest, StagesTheFactorsOfFewerLayersAtOnce) {
  auto model = small_model();
  Kfac kfac(*model, planned(curvature(3, {0, 1, 2})));
  int64_t all = 0;
  for (int64_t step = 0; step < 4; ++step) {
    const auto loss = loss_of(model);
    kfac.watch(loss, kGlobalBatch);
    loss.backward();
    const int64_t staged = kfac.usage().bytes.staged;
    if (step == 0) all = staged;
    if (step > 0) {
      EXPECT_LT(staged, all) << step;
      EXPECT_GT(staged, 0) << step;
    }
    kfac.step();
  }
}

TEST(LayerCurvatureTest, NamesTheKindOfEachStep) {
  auto model = small_model();
  Kfac kfac(*model, planned(curvature(4, {1, 1, 3})));
  std::vector<std::string> kinds;
  for (int now = 0; now < 8; ++now) {
    kinds.emplace_back(kfac.work().kind);
    EXPECT_EQ(kfac.work().updates_factors, kinds.back() != "plain");
    EXPECT_EQ(kfac.work().decomposes, kinds.back() != "plain");
    step(kfac, model);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"factor+decompose", "curvature 1", "plain", "curvature 3", "plain",
                                             "curvature 1", "plain", "curvature 3"}));
}

TEST(LayerCurvatureTest, GivesTheSameBitsUnderEveryExactStrategy) {
  auto layers = curvature(3, {2, 0, 1});
  layers[0].samples = FactorSamples::at_least(20);
  layers[2].rank = EigenRank::of(3);
  layers[1].interval = 6;
  for (auto dtype : {FactorDtype::fp32, FactorDtype::fp16}) {
    const auto with = [&](Strategy strategy) {
      auto options = planned(layers, strategy, 1.0 / 3);
      options.factor_dtype = dtype;
      return options;
    };
    const auto reference = train_on(3, with(Strategy::mem_opt), {.steps = 9});
    for (auto strategy : {Strategy::comm_opt, Strategy::hybrid, Strategy::owner_reduce})
      for (const auto& outcome : train_on(3, with(strategy), {.steps = 9}))
        expect_bit_equal(reference[0], outcome, std::string(name(strategy)));
  }
}

TEST(LayerCurvatureTest, AStageSamplesThePositionsAndCountsTheStepsOfTheWholeModel) {
  auto layers = curvature(3, {0, 1, 2});
  for (auto& layer : layers) layer.samples = FactorSamples::at_least(4);
  auto model = small_model(), other = small_model();
  const auto whole_options = planned(layers);
  auto stage_options = planned({layers[2]});
  stage_options.skip = {"^0$", "^2$"};
  for (int64_t delay : {0, 1}) {
    auto of_whole = whole_options, of_stage = stage_options;
    of_whole.curvature_delay = of_stage.curvature_delay = delay;
    Kfac whole(*model, of_whole);
    const auto own_rows = [](const at::Tensor& rows, const std::vector<int64_t>&) { return rows; };
    Kfac stage(*other, of_stage, {},
               {.layers = {{.name = "0"}, {.name = "2"}, {.name = "5"}}, .curvature = layers, .all_rows = own_rows});
    for (int now = 0; now < 8; ++now) {
      for (auto& [kfac, trained] : {std::pair(&whole, &model), std::pair(&stage, &other)}) {
        const auto loss = loss_of(*trained);
        kfac->watch(loss, kGlobalBatch);
        loss.backward();
        kfac->step();
      }
      for (size_t f : {0, 1})
        EXPECT_TRUE(stage.state().factor(0, f).equal(whole.state().factor(2, f))) << now << ' ' << f;
      const KfacCounters counted = stage.counters(), expected = whole.counters();
      EXPECT_EQ(counted.factor_updates, expected.factor_updates) << now;
      EXPECT_EQ(counted.decompositions, expected.decompositions) << now;
      EXPECT_EQ(counted.last_factor_step, expected.last_factor_step) << now;
      EXPECT_EQ(counted.last_decomposition_step, expected.last_decomposition_step) << now;
    }
    EXPECT_EQ(whole.counters().factor_updates, 8);
  }
}

TEST(LayerCurvatureTest, GivesTheGradientOfOneProcess) {
  const auto options = planned(curvature(3, {2, 0, 1}));
  const auto single = train(options, {}, 0, 1, {.steps = 6});
  for (const auto& outcome : train_on(3, options, {.steps = 6})) expect_close(outcome, single, 1e-3, "three ranks");
}

TEST(LayerCurvatureTest, GoesOnInTheMidstOfACycle) {
  const auto options = planned(curvature(5, {1, 4, 2}));
  auto model = small_model(), other = small_model();
  Kfac first(*model, options);
  for (int i = 0; i < 3; ++i) step(first, model);
  Kfac second(*other, options);
  second.load_state_dict(first.state_dict());
  for (size_t i = 0; i < model->parameters().size(); ++i) other->parameters()[i].data().copy_(model->parameters()[i]);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(first.work().kind, second.work().kind);
    step(first, model);
    step(second, other);
  }
  for (size_t i = 0; i < model->parameters().size(); ++i)
    EXPECT_TRUE(model->parameters()[i].equal(other->parameters()[i])) << i;
}

TEST(LayerCurvatureTest, IsRefusedForAnotherModelAndBesideOptionsOfAllLayers) {
  EXPECT_NE(refusal(planned(curvature(3, {0, 1}))).find("of 2 layers, and the model has 3"), std::string::npos);
  auto other = curvature(3, {0, 1, 2});
  other[1].layer = "conv";
  EXPECT_NE(refusal(planned(other)).find("'conv' where the model has '2'"), std::string::npos);
  auto options = planned(curvature(3, {0, 1, 2}));
  options.burn_in = 2;
  EXPECT_NE(refusal(options).find("burn_in = 2 is outside 0 steps with layer_curvature"), std::string::npos);
  options.burn_in = 0;
  options.staleness = 1;
  EXPECT_NE(refusal(options).find("staleness"), std::string::npos);
  options.staleness = 0;
  options.overlap_factors = true;
  EXPECT_NE(refusal(options).find("overlap_factors"), std::string::npos);
}

TEST(LayerCurvatureTest, IsRefusedOnEveryRankWhereRanksDisagree) {
  std::atomic<int> refusals = 0;
  on_threads({0, 0}, [&](const ddl::Comm& comm, int64_t rank) {
    try {
      Kfac(*small_model(), planned(curvature(3, {0, 1, rank})), comm);
    } catch (const BadRequest& error) {
      refusals += std::string(error.what()).find("layer_curvature") != std::string::npos;
    }
  });
  EXPECT_EQ(refusals, 2);
}

TEST(CountPositionsTest, CountsTheRowsOfAllSamplesAndUses) {
  auto model = small_model();
  const auto layers = find_layers(*model, {}).layers;
  WeightIndex weights;
  for (size_t i = 0; i < layers.size(); ++i) weights[layers[i].weight.unsafeGetTensorImpl()] = i;
  const auto once = count_positions(loss_of(model), weights, layers.size());
  EXPECT_EQ(once, (std::vector<int64_t>{kGlobalBatch * 25, kGlobalBatch * 9, kGlobalBatch}));
  const auto twice = count_positions(loss_of(model) + loss_of(model), weights, layers.size());
  EXPECT_EQ(twice[0], 2 * once[0]);
  EXPECT_THROW(count_positions(at::ones({}), weights, layers.size()), c10::Error);
}

}  // namespace spillway::kfac
