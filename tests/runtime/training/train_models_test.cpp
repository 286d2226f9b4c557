// Tests that every model, trained in every way under the smallest feasible budget, has the bits of unlimited memory.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/device/cpu_device.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/training_run.h"
#include "runtime/training/unlimited_profile.h"

namespace spillway {
using namespace runtime;
namespace {

struct Way {
  const char* name;
  const char* model;
  const char* data;
  std::function<void(TrainOptions&)> change;
};

TrainOptions options_of(const Way& way) {
  CpuDevice::instance();
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  TrainOptions options;
  options.model.name = way.model;
  options.data.source = way.data;
  options.data.cases = 8;
  options.steps = 3;
  options.validate_every = 3;
  options.data.batch = 2;
  if (options.model.name == "unet3d") options.model.filters = 2;
  if (options.model.name == "bp3d") options.model.filters = 4;
  if (options.model.name == "resnet50") options.model.filters = 4;
  if (options.model.name == "bert-base") options.model.layers = 1, options.model.hidden = 64;
  if (options.model.name == "resnet50") options.model.classes = 4;
  if (options.model.name == "autoencoder") options.model.layers = 2, options.model.hidden = 64;
  way.change(options);
  return options;
}

struct TrainModelsTest : ::testing::TestWithParam<Way> {};

TEST_P(TrainModelsTest, TheSmallestBudgetChangesNoBit) {
  TrainOptions options = options_of(GetParam());
  TrainListener silent;
  const TrainResult free = train(options, {}, silent);
  options.memory.budget = {.kind = BudgetRequest::Kind::bytes,
                           .bytes = profile_unlimited_step(make_context(options, {})).floor_bytes};
  ASSERT_LT(options.memory.budget.bytes, free.peak_bytes);
  const TrainResult tight = train(options, {}, silent);
  EXPECT_EQ(tight.losses, free.losses);
  EXPECT_EQ(tight.weights_sha256, free.weights_sha256);
  EXPECT_EQ(tight.metric.back().value, free.metric.back().value);
  EXPECT_LE(tight.peak_bytes, options.memory.budget.bytes);
  EXPECT_GT(tight.bytes_out + tight.replayed_operators, 0) << "something left";
  for (double loss : free.losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_NE(free.losses.front(), free.losses.back());
}

/// Trains with K-FAC for `steps` steps, and returns how many of them left their schedule.
int64_t deviations(TrainOptions options, int steps) {
  options.kfac.enabled = true;
  options.optimizer.kind = OptimizerKind::sgd, options.optimizer.lr = 0.1;
  options.steps = steps;
  const RunContext context = make_context(options, {});
  TrainingRun run(context, kUnlimitedBytes, 1);
  for (int i = 0; i < steps; ++i) run.step();
  return run.session().stats().deviations;
}

// Checks that updates of factors over sampled positions do the same operators on the same memory, wherever the sample
// starts. Only the first decomposition differs from later ones, because it has no basis to start from.
TEST(KfacStepsTest, FollowTheirSchedules) {
  const Way convolutions{"", "resnet50", "synthetic:64", [](TrainOptions& o) { o.model.filters = 8; }};
  const Way volumes{"", "unet3d", "synthetic:32", [](TrainOptions& o) { o.model.filters = 8; }};
  const Way rows{"", "bert-base", "synthetic:32", [](TrainOptions& o) { o.data.batch = 4; }};
  for (const Way& way : {convolutions, volumes, rows}) {
    TrainOptions options = options_of(way);
    options.kfac.preconditioner.factor_samples = kfac::FactorSamples::at_least(40);
    EXPECT_LE(deviations(options, 12), 1) << way.model;
  }
}

const auto kPlain = [](TrainOptions&) {};
const auto kSgd = [](TrainOptions& o) { o.optimizer.kind = OptimizerKind::sgd, o.optimizer.lr = 0.01; };
const auto kKfac = [](TrainOptions& o) {
  o.optimizer.kind = OptimizerKind::sgd, o.optimizer.lr = 0.1, o.kfac.enabled = true;
};
const auto kBf16 = [](TrainOptions& o) { o.precision.amp = Amp::bf16; };
const auto kChannelsLast = [](TrainOptions& o) { o.model.layout = Layout::channels_last; };
const auto kKfacBf16ChannelsLast = [](TrainOptions& o) { kKfac(o), kBf16(o), kChannelsLast(o); };
const auto kAccumulate = [](TrainOptions& o) {
  o.optimizer.accumulate = 2, o.data.batch = 1, o.optimizer.kind = OptimizerKind::adamw;
};
const auto kLamb = [](TrainOptions& o) {
  o.optimizer.kind = OptimizerKind::lamb, o.optimizer.weight_decay = 0.01, o.optimizer.clip_norm = 0.5,
  o.optimizer.warmup = 2;
};

const auto kKfacAndAdam = [](TrainOptions& o) { kKfac(o), o.optimizer.rest = {OptimizerKind::adam, 1e-3}; };
const auto kMuon = [](TrainOptions& o) {
  o.optimizer.kind = OptimizerKind::muon, o.optimizer.rest = {OptimizerKind::adamw, 1e-3},
  o.optimizer.weight_decay = 0.01;
};
const auto kSoap = [](TrainOptions& o) { kMuon(o), o.optimizer.kind = OptimizerKind::soap; };

INSTANTIATE_TEST_SUITE_P(
    Ways, TrainModelsTest,
    ::testing::Values(
        Way{"unet3d_bf16", "unet3d", "synthetic:32", kBf16},
        Way{"unet3d_channels_last", "unet3d", "synthetic:32", kChannelsLast},
        Way{"unet3d_kfac_bf16_channels_last", "unet3d", "synthetic:32", kKfacBf16ChannelsLast},
        Way{"unet3d_kfac_and_adam", "unet3d", "synthetic:32", kKfacAndAdam},
        Way{"unet3d_muon", "unet3d", "synthetic:32", kMuon}, Way{"unet3d_soap", "unet3d", "synthetic:32", kSoap},
        Way{"unet3d_accumulate", "unet3d", "synthetic:32", kAccumulate},
        Way{"bp3d", "bp3d", "synthetic:32", kPlain},  //
        Way{"bp3d_kfac", "bp3d", "synthetic:32", kKfac}, Way{"bp3d_bf16", "bp3d", "synthetic:32", kBf16},
        Way{"bp3d_channels_last", "bp3d", "synthetic:32", kChannelsLast},
        Way{"bp3d_accumulate", "bp3d", "synthetic:32", kAccumulate},
        Way{"autoencoder", "autoencoder", "synthetic:28", kPlain},
        Way{"autoencoder_kfac", "autoencoder", "synthetic:28", kKfac},
        Way{"resnet50", "resnet50", "synthetic:40", kSgd}, Way{"resnet50_kfac", "resnet50", "synthetic:40", kKfac},
        Way{"resnet50_bf16", "resnet50", "synthetic:40", kBf16},
        Way{"resnet50_channels_last", "resnet50", "synthetic:40", kChannelsLast},
        Way{"resnet50_lamb", "resnet50", "synthetic:40", kLamb}, Way{"bert_base", "bert-base", "synthetic:24", kPlain},
        Way{"bert_base_kfac", "bert-base", "synthetic:24", kKfac},
        Way{"bert_base_bf16", "bert-base", "synthetic:24", kBf16},
        Way{"bert_base_lamb", "bert-base", "synthetic:24", kLamb},
        Way{"bert_base_muon", "bert-base", "synthetic:24", kMuon},
        Way{"bert_base_accumulate", "bert-base", "synthetic:24", kAccumulate}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace spillway
