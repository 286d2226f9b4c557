// Tests of runs whose damping follows the loss: TrainOptions::damping_adaptation.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "runtime/report/report.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"

namespace spillway {
using namespace runtime;
namespace {

/// Returns options of a small model with dropout (bert-base) or running statistics (resnet50).
TrainOptions small(const std::string& model) {
  TrainOptions o;
  o.model.name = model;
  o.data.source = model == "resnet50" ? "synthetic:33" : "synthetic:16";
  o.data.batch = 2;
  o.data.cases = 12;
  if (model == "resnet50") o.model.filters = 2;
  if (model == "bert-base") o.model.layers = 1, o.model.hidden = 64;
  o.optimizer.kind = OptimizerKind::sgd;
  o.optimizer.momentum = 0;
  o.optimizer.lr = 0.05;
  o.kfac.enabled = true;
  o.kfac.preconditioner.factor_interval = o.kfac.preconditioner.inverse_interval = 1;
  o.kfac.preconditioner.decay = 0.95;
  o.kfac.preconditioner.kl_clip = kfac::harmonic(3e-5, 10);  // short steps, whose reductions are as predicted
  o.kfac.preconditioner.norm_clip = 0.02;
  o.kfac.preconditioner.eigen_rank = kfac::EigenRank::full();
  return o;
}

TrainResult run(TrainOptions options, int64_t steps, int64_t every) {
  options.steps = steps;
  options.kfac.damping_adaptation = every;
  TrainListener silent;
  return train(options, {}, silent);
}

double scale_of(const TrainResult& result) {
  return result.kfac->counters.damping_scale;
}

}  // namespace

TEST(AdaptedDampingTest, ChangesStepsAfterAnAdaptationAndNothingBefore) {
  for (const char* model : {"bert-base", "resnet50"}) {
    const TrainResult constant = run(small(model), 5, 0), adapted = run(small(model), 5, 2);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(adapted.losses[i], constant.losses[i]) << model << i;
    EXPECT_NE(adapted.losses[4], constant.losses[4]) << model;
    EXPECT_EQ(scale_of(constant), 1) << model;
    EXPECT_EQ(constant.kfac->counters.last_adaptation, 0) << model;
    EXPECT_EQ(adapted.kfac->counters.last_adaptation, 4) << model;
    EXPECT_EQ(to_json(adapted)["kfac"]["damping_scale"], scale_of(adapted)) << model;
  }
}

TEST(AdaptedDampingTest, LeavesBuffersAndGeneratorsAlone) {
  for (const char* model : {"bert-base", "resnet50"}) {
    const TrainResult constant = run(small(model), 3, 0), adapted = run(small(model), 3, 3);
    EXPECT_NE(scale_of(adapted), 1) << model;
    EXPECT_EQ(adapted.weights_sha256, constant.weights_sha256) << model << ": buffers count, too";
    EXPECT_EQ(adapted.metric.back().value, constant.metric.back().value) << model;
  }
}

TEST(AdaptedDampingTest, MeasuresTheSameLossAgainSoAShortStepReducesItAsPredicted) {
  // Other dropout would change the loss by more than the step does.
  for (const char* model : {"bert-base", "resnet50"}) {
    TrainOptions o = small(model);
    o.optimizer.accumulate = 2;
    o.optimizer.lr = model == std::string("resnet50") ? 1e-5 : 1e-2;
    EXPECT_DOUBLE_EQ(scale_of(run(o, 6, 1)), std::pow(0.95, 6)) << model;
    EXPECT_DOUBLE_EQ(scale_of(run(o, 7, 3)), std::pow(0.95, 6)) << model << ": twice, three steps each";
  }
}

TEST(AdaptedDampingTest, GivesTheSameBitsUnderABudget) {
  TrainOptions o = small("bert-base");
  const TrainResult free = run(o, 4, 1);
  o.memory.budget = BudgetRequest::parse("95%");
  const TrainResult tight = run(o, 4, 1);
  EXPECT_EQ(tight.weights_sha256, free.weights_sha256);
  EXPECT_EQ(scale_of(tight), scale_of(free));
  EXPECT_LE(tight.peak_bytes, tight.budget_bytes);
}

TEST(AdaptedDampingTest, WaitsForTheNextTimeWhereAStepIsLeftOut) {
  TrainOptions o = small("mlp");
  o.precision.amp = Amp::fp16;
  o.precision.loss_scaling = {.initial = 0x1p40, .growth_interval = 1000};
  const TrainResult skipped = run(o, 3, 1);
  ASSERT_EQ(skipped.kfac->counters.steps, 0) << "every step overflows";
  EXPECT_EQ(scale_of(skipped), 1);
}

TEST(AdaptedDampingTest, RefusesANegativeNumberOfSteps) {
  TrainOptions o = small("mlp");
  o.kfac.damping_adaptation = -1;
  EXPECT_THROW(o.validate(), BadRequest);
}

}  // namespace spillway
