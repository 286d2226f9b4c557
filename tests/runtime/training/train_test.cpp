#include "runtime/training/train.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/program.h"
#include "runtime/data/sampler.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/planning/grad_worker_choice.h"
#include "runtime/report/report.h"
#include "runtime/training/run_context.h"
#include "runtime/training/training_run.h"
#include "runtime/training/unlimited_profile.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

TEST(BudgetRequestTest, ReadsSizesSharesAndNone) {
  EXPECT_EQ(BudgetRequest::parse("none").kind, BudgetRequest::Kind::none);
  EXPECT_EQ(BudgetRequest::parse("600MiB").bytes, 600LL << 20);
  EXPECT_EQ(BudgetRequest::parse("37.5%").percent, 37.5);
  for (const char* bad : {"", "%", "50 %", "-5%", "0%", "0", "many", "5%%", "nan%"})
    EXPECT_THROW(BudgetRequest::parse(bad), BadRequest) << bad;
}

TEST(SamplerTest, DealsEveryCaseOncePerPassToDisjointRanks) {
  const std::vector<int64_t> cases{3, 5, 7, 9, 11, 13};
  std::multiset<int64_t> seen;
  std::vector<Sampler> ranks;
  for (int r = 0; r < 3; ++r) ranks.emplace_back(cases, 1, r, 3, 42);
  for (int step = 0; step < 4; ++step) {
    std::set<int64_t> together;
    for (Sampler& rank : ranks) together.insert(rank.next().at(0));
    EXPECT_EQ(together.size(), 3u);
    seen.insert(together.begin(), together.end());
  }
  for (int64_t c : cases) EXPECT_EQ(seen.count(c), 2u);
  EXPECT_EQ(ranks[0].steps_per_epoch(), 2);
}

TEST(SamplerTest, SkippingIsDealingUnseen) {
  const std::vector<int64_t> cases{1, 2, 3, 4, 5};
  Sampler one(cases, 2, 0, 1, 7), other(cases, 2, 0, 1, 7);
  for (int i = 0; i < 4; ++i) one.next();
  other.skip(8);
  EXPECT_EQ(one.next(), other.next());
  EXPECT_EQ(one.steps_per_epoch(), 3);
  EXPECT_EQ(one.steps_per_epoch(2), 2);
}

TEST(SamplerTest, ARunThatGoesOnWithOtherRanksLeavesNoCaseOutAndRepeatsNone) {
  const std::vector<int64_t> cases{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::multiset<int64_t> seen;
  const auto deal = [&](int64_t drawn, int steps, int world) {
    for (int rank = 0; rank < world; ++rank) {
      Sampler sampler(cases, 1, rank, world, 7);
      sampler.skip(drawn);
      for (int step = 0; step < steps; ++step) seen.insert(sampler.next().at(0));
    }
  };
  deal(0, 2, 3);  // three ranks draw six cases, two ranks the next four, and one rank the last two
  deal(6, 2, 2);
  deal(10, 2, 1);
  for (int64_t c : cases) EXPECT_EQ(seen.count(c), 1u);
}

TEST(SamplerTest, TheSeedDecidesTheOrderAndPassesDiffer) {
  std::vector<int64_t> cases(20);
  for (size_t i = 0; i < cases.size(); ++i) cases[i] = static_cast<int64_t>(i);
  auto pass = [&](Sampler& s) { return s.next(); };
  Sampler a(cases, 20, 0, 1, 1), b(cases, 20, 0, 1, 1), c(cases, 20, 0, 1, 2);
  auto first = pass(a);
  EXPECT_EQ(first, pass(b));
  EXPECT_NE(first, pass(c));
  EXPECT_NE(first, pass(a));
  EXPECT_THROW(Sampler({}, 1, 0, 1, 0), std::invalid_argument);
}

GradWorkerInputs inputs_for(int64_t budget_bytes) {
  GradWorkerInputs in;
  for (int i = 0; i < 8; ++i) {
    kfac::LayerShape layer;
    layer.out = layer.in = 512;
    in.layers.push_back(layer);
  }
  in.world = 4;
  in.budget_bytes = budget_bytes;
  in.first_step_peak_bytes = 100 << 20;
  in.step_seconds = 0.01;
  return in;
}

TEST(GradWorkerChoiceTest, TakesEveryRankWhenAllFits) {
  for (int64_t budget : {kUnlimitedBytes, int64_t{1} << 30}) {
    GradWorkerChoice choice = choose_grad_worker_frac(inputs_for(budget));
    EXPECT_EQ(choice.grad_worker_frac, 1);
    EXPECT_NE(choice.reason.find("fits"), std::string::npos) << choice.reason;
  }
}

TEST(GradWorkerChoiceTest, TakesFewerWhenCopiesOfEigenbasesWouldOutlastCompute) {
  GradWorkerInputs in = inputs_for(60 << 20);
  in.copy_bytes_per_second = 1e9;
  in.broadcast_bytes_per_second = 1e10;
  GradWorkerChoice choice = choose_grad_worker_frac(in);
  EXPECT_LT(choice.grad_worker_frac, 1);
  EXPECT_NE(choice.reason.find("outlast"), std::string::npos) << choice.reason;
  in.step_seconds = 10;  // there is time to hide every copy, and streaming is preferred to fewer workers
  EXPECT_EQ(choose_grad_worker_frac(in).grad_worker_frac, 1);
  in.world = 1;
  EXPECT_EQ(choose_grad_worker_frac(in).grad_worker_frac, 1);
}

// Checks eigenvalues of sides of 512. They take 2 KiB each, less than a page, so those of all layers stay resident.
TEST(GradWorkerChoiceTest, TakesNoMoreWorkersThanTheirSmallTensorsHaveRoomFor) {
  GradWorkerInputs in = inputs_for(101 << 20);
  in.floor_bytes = (101 << 20) - 16 * 2048;
  EXPECT_EQ(choose_grad_worker_frac(in).grad_worker_frac, 1) << "eight layers' values, less those of two";
  in.floor_bytes = in.budget_bytes - 6 * 2048 * 2 + 1;
  EXPECT_LT(choose_grad_worker_frac(in).grad_worker_frac, 1);
  in.floor_bytes = in.budget_bytes;
  const GradWorkerChoice observed = choose_grad_worker_frac(in);
  EXPECT_EQ(observed.grad_worker_frac, 0.25) << "what was observed has room";
  EXPECT_NE(observed.reason.find("too little room"), std::string::npos) << observed.reason;
}

TEST(GradWorkerChoiceTest, TakesTheStrategyThatTheBudgetAsksFor) {
  GradWorkerInputs in = inputs_for(kUnlimitedBytes);
  in.options.strategy = kfac::Strategy::automatic;
  // Without a budget only messages count. Factors that only their owners need send the least.
  EXPECT_NE(choose_grad_worker_frac(in).reason.find(kfac::name(choose_grad_worker_frac(in).strategy)),
            std::string::npos);
  in.budget_bytes = 60 << 20;
  in.copy_bytes_per_second = 1e9;
  in.broadcast_bytes_per_second = 1e10;
  const GradWorkerChoice tight = choose_grad_worker_frac(in);
  EXPECT_EQ(tight.strategy, kfac::Strategy::owner_reduce) << tight.reason;
  in.options.strategy = kfac::Strategy::hybrid;
  EXPECT_EQ(choose_grad_worker_frac(in).strategy, kfac::Strategy::hybrid);
}

TEST(ResolveBudgetTest, MeansASharesBytesAndRefusesWhatIsBelowTheFloor) {
  UnlimitedProfile observed{
      .peak_bytes = 1000, .floor_bytes = 400, .floor_operator = "aten::conv", .floor_operator_bytes = 300};
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("none"), observed), kUnlimitedBytes);
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("50%"), observed), 500);
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("400"), observed), 400);
  try {
    resolve_budget(BudgetRequest::parse("399"), observed);
    FAIL() << "took a budget below the floor";
  } catch (const InfeasibleBudget& error) {
    const std::string what = error.what();
    for (const char* part : {"aten::conv", "300 B", "400 bytes"}) EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

TEST(ResolveBudgetTest, AShareIsOfTensorsAndLibrariesComeOnTop) {
  UnlimitedProfile observed{.peak_bytes = 1000, .floor_bytes = 300, .library_bytes = 200, .floor_operator = "aten::mm"};
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("50%"), observed), 600);
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("100%"), observed), 1000);
  EXPECT_EQ(resolve_budget(BudgetRequest::parse("700"), observed), 700) << "bytes are meant as they are";
  EXPECT_EQ(in_bytes(BudgetRequest::parse("50%"), observed.tensor_bytes()).bytes, 400)
      << "the host holds tensors alone";
}

TEST(FingerprintTest, EveryBitOfEveryTensorCounts) {
  torch::nn::BatchNorm1d module(4);
  const std::string before = weights_sha256(*module);
  EXPECT_EQ(before.size(), 64u);
  EXPECT_EQ(before, weights_sha256(*module));
  at::NoGradGuard no_grad;
  module->running_var[3] += 1e-7;
  EXPECT_NE(before, weights_sha256(*module));
}

TEST(TrainTest, AnMlpLearnsAndItsResultIsWhole) {
  TrainOptions options;
  options.model.name = "mlp";
  options.data.source = "synthetic:32";
  options.steps = 60;
  options.data.batch = 8;
  options.optimizer.lr = 1e-2;
  TrainListener silent;
  const TrainResult result = train(options, {}, silent);
  ASSERT_EQ(result.losses.size(), 60u);
  EXPECT_LT(result.losses.back(), result.losses.front() / 2);
  EXPECT_EQ(result.metric_name, "accuracy");
  EXPECT_EQ(result.metric.front().step, 0);
  EXPECT_EQ(result.metric.back().step, 60);
  EXPECT_FALSE(result.recording.memory.empty());
  EXPECT_EQ(to_json(result)["version"], kVersion);
  EXPECT_TRUE(to_json(result)["budget_bytes"].is_null());
}

TrainResult train_mlp(const std::function<void(TrainOptions&)>& change) {
  TrainOptions options;
  options.model.name = "mlp";
  options.data.source = "synthetic:16";
  options.steps = 6;
  options.optimizer.kind = OptimizerKind::sgd;
  options.optimizer.lr = 0.1;
  change(options);
  TrainListener silent;
  return train(options, {}, silent);
}

TEST(TrainTest, MicroBatchesEqualOneBatchOfTheirSum) {
  const TrainResult one = train_mlp([](TrainOptions& o) { o.data.batch = 8; });
  const TrainResult parts = train_mlp([](TrainOptions& o) { o.data.batch = 2, o.optimizer.accumulate = 4; });
  ASSERT_EQ(one.losses.size(), parts.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one.losses[i], parts.losses[i], 1e-5) << i;
  // K-FAC's statistics are those of the whole batch, too.
  auto kfac = [](TrainOptions& o) { o.kfac.enabled = true; };
  const TrainResult one_kfac = train_mlp([&](TrainOptions& o) { kfac(o), o.data.batch = 8; });
  const TrainResult parts_kfac =
      train_mlp([&](TrainOptions& o) { kfac(o), o.data.batch = 2, o.optimizer.accumulate = 4; });
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one_kfac.losses[i], parts_kfac.losses[i], 1e-3) << i;
}

TEST(TrainTest, EveryStepTakesItsOwnLearningRate) {
  auto changed = [](TrainOptions& o) {
    o.data.cases = 31, o.data.batch = 14;  // an epoch is two steps, because 28 cases are not held out
    o.optimizer.warmup = 3;
    o.optimizer.lr_decay = {{0.5, 2}};
  };
  const TrainResult result = train_mlp(changed);
  const std::vector<double> expected{0.1 / 3, 0.1 * 2 / 3, 0.1, 0.1, 0.05, 0.05};
  for (size_t i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(result.learning_rates[i], expected[i]) << i;
  // The steps really use these rates: without warm-up, the first loss is the same and the second is not.
  const TrainResult constant = train_mlp([](TrainOptions& o) { o.data.cases = 31, o.data.batch = 14; });
  EXPECT_EQ(result.losses[0], constant.losses[0]);
  EXPECT_NE(result.losses[1], constant.losses[1]);
  // With a decay alone, all losses are the same until the decay's epoch.
  const TrainResult decayed = train_mlp([](TrainOptions& o) {
    o.data.cases = 31, o.data.batch = 14, o.optimizer.lr_decay = {{0.5, 2}};
  });
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(decayed.losses[i], constant.losses[i]) << i;
  EXPECT_NE(decayed.losses[5], constant.losses[5]);
}

TEST(TrainTest, EveryOptimizerAndOptionChangesTheRun) {
  std::set<std::string> weights;
  size_t runs = 0;
  auto add = [&](const std::function<void(TrainOptions&)>& change) {
    weights.insert(train_mlp(change).weights_sha256);
    ++runs;
  };
  add([](TrainOptions&) {});
  add([](TrainOptions& o) { o.optimizer.nesterov = true; });
  add([](TrainOptions& o) { o.optimizer.momentum = 0; });
  add([](TrainOptions& o) { o.optimizer.clip_norm = 0.1; });
  add([](TrainOptions& o) { o.optimizer.weight_decay = 0.1; });
  add([](TrainOptions& o) { o.precision.amp = Amp::bf16; });
  add([](TrainOptions& o) { o.data.cases = 20; });
  add([](TrainOptions& o) { o.model.hidden = 32; });
  add([](TrainOptions& o) { o.model.layers = 1; });
  add([](TrainOptions& o) { o.model.classes = 4; });
  for (const OptimizerKind optimizer : {OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lamb})
    add([&](TrainOptions& o) { o.optimizer.kind = optimizer, o.optimizer.weight_decay = 0.1; });
  for (const OptimizerKind optimizer : {OptimizerKind::muon, OptimizerKind::soap})
    for (const double rest_lr : {1e-2, 1e-3})
      add([&](TrainOptions& o) { o.optimizer.kind = optimizer, o.optimizer.rest = {OptimizerKind::adamw, rest_lr}; });
  EXPECT_EQ(weights.size(), runs);
}

TEST(TrainTest, TakesNoFurtherStepWhenInterrupted) {
  TrainOptions options;
  options.model.name = "mlp";
  options.data.source = "synthetic:16";
  options.steps = 1000;
  TrainRequests requests;
  struct Listener : TrainListener {
    TrainRequests* requests;
    void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override { requests->stop = step == 3; }
  } listener;
  listener.requests = &requests;
  const TrainResult result = train(options, {}, listener, &requests);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.losses.size(), 3u);
}

TEST(TrainTest, TellsKfacTheLearningRateOfTheStepWhicheverStepsAreLeftOut) {
  TrainOptions options;
  options.model.name = "mlp";
  options.data.source = "synthetic:16";
  options.optimizer.kind = OptimizerKind::sgd;
  options.kfac.enabled = true;
  options.precision.amp = Amp::fp16;
  options.precision.loss_scaling.initial = 0x1p24;
  options.optimizer.warmup = 12;
  const RunContext context = make_context(options, {});
  TrainingRun run(context, kUnlimitedBytes, 1);
  int64_t skipped = 0;
  for (int step = 0; step < 12; ++step) {
    const double told = run.kfac()->options().lr.at(run.kfac()->counters().steps);
    const RunStep outcome = run.step();
    EXPECT_EQ(told, outcome.lr);
    skipped += outcome.skipped;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(run.kfac()->counters().steps, 12 - skipped);
}

TEST(TrainOptionsTest, NamesTheBadField) {
  auto refused = [](auto change, std::string_view field) {
    TrainOptions options;
    try {
      change(options);
      options.validate();
      ADD_FAILURE() << "accepted a bad " << field;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  refused([](TrainOptions& o) { o.data.batch = -1; }, "batch");
  refused([](TrainOptions& o) { o.model.filters = -1; }, "filters");
  refused([](TrainOptions& o) { o.model.hidden = 8; }, "unet3d has no such choice");
  refused([](TrainOptions& o) { o.model.name = "resnet50", o.model.classes = 1; },
          "classes is 1; allowed is 2 or more");
  refused([](TrainOptions& o) { o.model.name = "bert-base", o.model.filters = 8; }, "filters");
  refused([](TrainOptions& o) { o.model.name = "vgg"; }, "vgg");
  refused([](TrainOptions& o) { o.optimizer.accumulate = 0; }, "accumulate");
  refused([](TrainOptions& o) { o.precision.amp = parse_amp("fp8"); }, "'fp8'; allowed is fp16, bf16 or off");
  refused([](TrainOptions& o) { o.precision.loss_scaling.initial = 0; }, "loss_scale is 0");
  refused([](TrainOptions& o) { o.precision.amp = parse_amp("int8"); }, "bf16 or off");
  refused([](TrainOptions& o) { o.model.layout = parse_layout("nhwc"); }, "contiguous or channels_last");
  refused([](TrainOptions& o) { o.model.name = "mlp", o.model.layout = Layout::channels_last; }, "mlp has no channels");
  refused([](TrainOptions& o) { o.optimizer.nesterov = true; }, "nesterov");
  refused([](TrainOptions& o) { o.optimizer.warmup = -1; }, "warmup");
  refused([](TrainOptions& o) { o.optimizer.clip_norm = -1; }, "clip_norm");
  refused([](TrainOptions& o) { o.optimizer.clip_norm = 1, o.kfac.enabled = true; }, "clip_norm");
  refused([](TrainOptions& o) { o.checkpoint.every = 1; }, "checkpoint_every");
  refused([](TrainOptions& o) { o.checkpoint.resume = true; }, "resume");
  refused([](TrainOptions& o) { o.steps = 0; }, "steps");
  refused([](TrainOptions& o) { o.optimizer.lr = 0; }, "lr");
  refused([](TrainOptions& o) { o.optimizer.momentum = 1; }, "momentum");
  refused([](TrainOptions& o) { o.optimizer.kind = parse_optimizer("lion"); }, "optimizer");
  refused([](TrainOptions& o) { o.memory.engine = parse_engine("lms"); }, "gate or unified");
  refused([](TrainOptions& o) { o.memory.engine = Engine::unified; }, "--device cuda");
  refused([](TrainOptions& o) { o.memory.device = "cuda", o.memory.engine = Engine::unified, o.memory.disk = "pages"; },
          "--engine gate");
}

TEST(VersionTest, IsTheProjects) {
  EXPECT_STREQ(kVersion, SPILLWAY_PROJECT_VERSION);
}

}  // namespace
}  // namespace spillway
