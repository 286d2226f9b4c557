#include "runtime/training/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "ddl/comm/collectives.h"
#include "ddl/comm/thread_world.h"
#include "runtime/io/tensor_file.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/training_run.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"
#include "tests/runtime/training/scratch_training.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

using Path = std::filesystem::path;

class CheckpointTest : public ScratchTraining {
 protected:
  Path file() const { return checkpoint_file(dir_ / "checkpoints"); }
};

/// Expects that a training that is interrupted after its third step and resumed equals a whole one.
void expect_resumed_equals_whole(TrainOptions options) {
  TrainOptions whole = options;
  whole.checkpoint.folder.clear();
  const TrainResult expected = run(whole);

  TrainRequests requests;
  struct Interrupter : TrainListener {
    TrainRequests* requests;
    void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override { requests->stop = step == 3; }
  } listener;
  listener.requests = &requests;
  const TrainResult first = train(options, {}, listener, &requests);
  ASSERT_EQ(first.losses.size(), 3u);

  options.checkpoint.resume = true;
  const TrainResult second = run(options);
  EXPECT_EQ(second.resumed_from_step, 3);
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  EXPECT_EQ(losses, expected.losses);
  EXPECT_EQ(second.weights_sha256, expected.weights_sha256);
  EXPECT_EQ(second.metric.back().value, expected.metric.back().value);
  EXPECT_EQ(second.learning_rates.back(), expected.learning_rates.back());
}

}  // namespace

TEST_F(CheckpointTest, AResumedRunEqualsAnUninterruptedOne) {
  for (const OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw,
                                        OptimizerKind::lamb, OptimizerKind::muon, OptimizerKind::soap}) {
    TrainOptions o = options();
    o.optimizer.kind = optimizer;
    if (is_of_matrices(optimizer)) o.optimizer.rest = {OptimizerKind::adamw, 1e-2};
    o.optimizer.warmup = 4;
    o.optimizer.lr_decay = {{0.5, 1}};
    o.optimizer.accumulate = 2;
    expect_resumed_equals_whole(o);
  }
}

TEST_F(CheckpointTest, SoDoesOneWithDropoutUnderABudget) {
  TrainOptions o = options("bert-base");
  o.model.layers = 1;
  o.model.hidden = 64;
  o.memory.budget = BudgetRequest::parse("95%");
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneWithRunningStatisticsAndChannelsLast) {
  TrainOptions o = options("resnet50");
  o.data.source = "synthetic:33";
  o.model.filters = 2;
  o.model.layout = Layout::channels_last;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneWithKfacInTheMiddleOfItsIntervals) {
  TrainOptions o = options();
  o.kfac.enabled = true;
  o.optimizer.kind = OptimizerKind::sgd;
  o.optimizer.lr = 0.1;
  o.kfac.preconditioner.burn_in = 1;
  o.kfac.preconditioner.factor_interval = 2;
  o.kfac.preconditioner.inverse_interval = 4;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneInFloat16WhoseLossScaleIsStillFallingAndWithStateIn16Bits) {
  for (double scale : {0x1p26, 4.0}) {  // no update until after the third step; and growing
    TrainOptions o = options();
    o.precision.amp = Amp::fp16;
    o.precision.loss_scaling = {.initial = scale, .growth_interval = 2};
    o.kfac.enabled = true;
    o.optimizer.kind = OptimizerKind::sgd;
    o.optimizer.lr = 0.1;
    o.kfac.preconditioner.factor_interval = o.kfac.preconditioner.inverse_interval = 2;
    o.kfac.preconditioner.storage = kfac::FactorDtype::bf16;
    expect_resumed_equals_whole(o);
    std::filesystem::remove_all(o.checkpoint.folder);
  }
}

TEST_F(CheckpointTest, SoDoesOneWithEveryMethodOfKfacAndGrowingIntervals) {
  for (const auto& [method, outer] : {std::pair(kfac::Method::eigen, true), std::pair(kfac::Method::plain, false),
                                      std::pair(kfac::Method::pi, false)}) {
    TrainOptions o = options();
    o.kfac.enabled = true;
    o.optimizer.kind = OptimizerKind::sgd;
    o.optimizer.lr = 0.1;
    o.kfac.preconditioner.method = method;
    o.kfac.preconditioner.precompute_outer = outer;
    o.kfac.preconditioner.convention = kfac::Convention::kaisa;
    o.kfac.preconditioner.burn_in = 1;
    o.kfac.preconditioner.factor_interval = o.kfac.preconditioner.inverse_interval = 2;
    o.kfac.damping_decay = {{0.5, 1}};
    o.kfac.interval_decay = {{1.5, 1}};
    expect_resumed_equals_whole(o);
    std::filesystem::remove_all(o.checkpoint.folder);
  }
}

TEST_F(CheckpointTest, SoDoesOneWhileKfacDecomposesBesideTheSteps) {
  TrainOptions o = options();
  o.kfac.enabled = true;
  o.optimizer.kind = OptimizerKind::sgd;
  o.optimizer.lr = 0.1;
  o.kfac.preconditioner.burn_in = 1;
  o.kfac.preconditioner.factor_interval = 1;
  o.kfac.preconditioner.inverse_interval = 2;
  o.kfac.preconditioner.staleness = 2;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, SoDoesOneWhoseDampingFollowsTheLoss) {
  TrainOptions o = options("bert-base");
  o.model.layers = 1;
  o.model.hidden = 64;
  o.kfac.enabled = true;
  o.optimizer.kind = OptimizerKind::sgd;
  o.optimizer.lr = 0.1;
  o.kfac.preconditioner.factor_interval = o.kfac.preconditioner.inverse_interval = 2;
  o.kfac.damping_adaptation = 2;
  expect_resumed_equals_whole(o);
}

TEST_F(CheckpointTest, IsWrittenEverySoManyStepsAndAtTheEnd) {
  TrainOptions o = options();
  o.checkpoint.every = 4;
  std::vector<int64_t> steps;
  struct Listener : TrainListener {
    std::function<void()> look;
    void on_step(int64_t, int64_t, const StepOutcome&, int64_t) override { look(); }
  } listener;
  listener.look = [&] {
    steps.push_back(
        std::filesystem::exists(file()) ? checkpoint_position(o.checkpoint.folder, with_model_defaults(o)).step : 0);
  };
  train(o, {}, listener);
  // The listener hears of a step before its checkpoint is written.
  EXPECT_EQ(steps, std::vector<int64_t>({0, 0, 0, 0, 4, 4}));
  EXPECT_EQ(checkpoint_position(o.checkpoint.folder, with_model_defaults(o)).step, 6);
}

TEST_F(CheckpointTest, IsWrittenAfterTheStepInWhichSomebodyAsksForItAndTrainingGoesOn) {
  TrainOptions o = options();
  TrainRequests requests;
  std::vector<int64_t> steps;
  struct Listener : TrainListener {
    std::function<void(int64_t)> look;
    std::vector<std::string> decisions;
    void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override { look(step); }
    void on_decision(const std::string& text) override { decisions.push_back(text); }
  } listener;
  listener.look = [&](int64_t step) {
    const bool exists = !o.checkpoint.folder.empty() && std::filesystem::exists(file());
    steps.push_back(exists ? checkpoint_position(o.checkpoint.folder, with_model_defaults(o)).step : 0);
    if (step == 2) requests.checkpoint = true;
  };
  const auto said = [&](const std::string& text) {
    return std::count(listener.decisions.begin(), listener.decisions.end(), text);
  };
  const TrainResult asked = train(o, {}, listener, &requests);
  EXPECT_EQ(steps, std::vector<int64_t>({0, 0, 0, 3, 3, 3}));
  EXPECT_FALSE(asked.interrupted);
  EXPECT_EQ(said("step 3: wrote the checkpoint that was asked for"), 1);

  o.checkpoint.folder.clear();
  EXPECT_EQ(train(o, {}, listener, &requests).weights_sha256, asked.weights_sha256);
  EXPECT_EQ(said("step 3: a checkpoint was asked for, but this run has no folder for it"), 1);
}

/// An observer that sleeps before the first operator.
class SlowAtFirst final : public OperatorObserver {
 public:
  explicit SlowAtFirst(std::chrono::milliseconds time) : time_(time) {}
  void before(const c10::OperatorHandle&, const torch::jit::Stack&) override {
    std::this_thread::sleep_for(std::exchange(time_, std::chrono::milliseconds(0)));
  }
  void after(const c10::OperatorHandle&, const torch::jit::Stack&) override {}

 private:
  std::chrono::milliseconds time_;
};

/// Checks that ranks wait longer than their deadline, because fetching a tensor and writing it may take that long.
TEST_F(CheckpointTest, IsWaitedForBeyondTheDeadline) {
  using namespace std::chrono_literals;
  const TrainOptions run = options();
  prepare_checkpoint_folder(run.checkpoint.folder);
  ddl::ThreadWorld world({0, 0});
  std::vector<std::string> errors(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        const auto comm = ddl::make_comm(world.communicator(rank, {.deadline = 800ms}));
        std::optional<Session> slow;
        if (rank == 0) slow.emplace(SessionOptions{.observer = std::make_shared<SlowAtFirst>(1500ms)});
        write_checkpoint(run.checkpoint.folder, run, {.step = 1}, {}, comm);
        ddl::barrier(*comm->communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  ranks.clear();
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST_F(CheckpointTest, IsThereForEveryRankThatHasWrittenIt) {
  const TrainOptions run = options();
  prepare_checkpoint_folder(run.checkpoint.folder);
  ddl::ThreadWorld world({0, 0});
  std::vector<int> found(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      write_checkpoint(run.checkpoint.folder, run, {.step = 1}, {}, ddl::make_comm(world.communicator(rank)));
      found[static_cast<size_t>(rank)] = std::filesystem::exists(checkpoint_file(run.checkpoint.folder)) ? 1 : 0;
    });
  ranks.clear();
  EXPECT_EQ(found, (std::vector<int>{1, 1}));
}

TEST_F(CheckpointTest, AnotherRunsIsRefusedNamingWhatDiffers) {
  const TrainOptions o = options();
  run(o);
  auto refused = [&](const std::function<void(TrainOptions&)>& change, std::initializer_list<std::string> parts) {
    TrainOptions other = o;
    other.steps = 8;
    other.checkpoint.resume = true;
    change(other);
    expect_refusal([&] { run(other); }, parts);
  };
  refused([](TrainOptions& t) { t.data.batch = 3; }, {"checkpoint.safetensors", "batch 2", "has 3"});
  refused([](TrainOptions& t) { t.model.hidden = 32; }, {"hidden 64", "has 32"});
  refused([](TrainOptions& t) { t.optimizer.kind = OptimizerKind::sgd; }, {"optimizer adam", "sgd"});
  refused([](TrainOptions& t) { t.seed = 1; }, {"seed 0"});
  refused([](TrainOptions& t) { t.memory.device = "cuda"; }, {"device cpu", "has cuda"});
  refused([](TrainOptions& t) { t.kfac.enabled = true; }, {"kfac off"});
  TrainOptions second = o;
  second.kfac.enabled = true;
  second.checkpoint.folder += "-kfac";
  run(second);
  const auto refused_with_kfac = [&](const std::function<void(TrainOptions&)>& change,
                                     std::initializer_list<std::string> parts) {
    refused(
        [&](TrainOptions& t) {
          t.kfac.enabled = true;
          t.checkpoint.folder = second.checkpoint.folder;
          change(t);
        },
        parts);
  };
  refused_with_kfac([](TrainOptions& t) { t.kfac.preconditioner.convention = kfac::Convention::kaisa; },
                    {"convention fisher", "kaisa"});
  refused_with_kfac([](TrainOptions& t) { t.kfac.preconditioner.strategy = kfac::Strategy::dp; },
                    {"statistics of all ranks", "of each layer's owner"});
  refused([](TrainOptions& t) { t.steps = 6; }, {"step 6", "nothing is left"});
  refused([](TrainOptions& t) { t.checkpoint.folder += "-not"; }, {"there is no", "checkpoints-not"});
}

TEST_F(CheckpointTest, ForeignFilesAreRefused) {
  TrainOptions o = options();
  o.checkpoint.resume = true;
  std::filesystem::create_directories(file().parent_path());
  write_file(file(), "PK\3\4 some other program's file, long enough to have a header");
  expect_refusal([&] { run(o); }, {"checkpoint.safetensors", "is no safetensors file"});
  TensorFileWriter writer(file(), {{"weight", at::kFloat, {1}}}, {{"format", "pt"}});
  writer.write(at::ones({1}));
  writer.commit();
  expect_refusal([&] { run(o); }, {"checkpoint.safetensors", "is no checkpoint"});
}

TEST_F(CheckpointTest, ADamagedTensorEndsTheRunBeforeItsFirstStep) {
  TrainOptions o = options();
  run(o);
  std::string bytes = read_file(file());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes[8 + length + 100] ^= 1;
  write_file(file(), bytes);
  o.checkpoint.resume = true;
  o.steps = 8;
  expect_refusal([&] { run(o); }, {"is damaged", "linear0"});
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsFoundBeforeTraining) {
  TrainOptions o = options();
  write_file(dir_ / "file", "not a folder");
  o.checkpoint.folder = (dir_ / "file" / "checkpoints").string();
  int64_t steps = 0;
  struct Listener : TrainListener {
    int64_t* steps;
    void on_step(int64_t, int64_t, const StepOutcome&, int64_t) override { ++*steps; }
  } listener;
  listener.steps = &steps;
  EXPECT_THROW(train(o, {}, listener), std::system_error);
  EXPECT_EQ(steps, 0);
}

}  // namespace spillway
