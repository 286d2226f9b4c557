// A training that is stopped before any of its operators goes on from its checkpoint as if nothing had happened.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include "core/error.h"
#include "core/interrupted.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/train.h"
#include "tests/runtime/training/scratch_training.h"

namespace spillway {
using namespace runtime;
namespace {

/// Requests a stop when so many operators have run, of every thread, after a step.
class StopAtOperator : public TrainListener {
 public:
  StopAtOperator(int64_t after_step, int64_t operators) : after_step_(after_step) {
    left_ = operators;
    counting_ = after_step == 0;
    current_ = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~StopAtOperator() override { at::removeCallback(handle_); }
  StopAtOperator(const StopAtOperator&) = delete;
  StopAtOperator& operator=(const StopAtOperator&) = delete;

  void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override {
    if (step == after_step_) counting_ = true;
  }
  void on_decision(const std::string& text) override { decisions_ += text + "\n"; }
  TrainRequests* requests() { return &requests_; }
  const std::string& decisions() const { return decisions_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction&) {
    if (current_->counting_ && --current_->left_ == 0) current_->requests_.stop = true;
    return nullptr;
  }

  static inline StopAtOperator* current_ = nullptr;
  const int64_t after_step_;
  std::atomic<int64_t> left_ = 0;
  std::atomic<bool> counting_ = false;
  TrainRequests requests_;
  std::string decisions_;
  at::CallbackHandle handle_ = 0;
};

/// Lets no file grow beyond 4 KiB after a step, as a full disk would, until the step that fails has been left. Then
/// checkpoints can be written, as if they were on another disk.
class NoRoomForPages : public TrainListener {
 public:
  explicit NoRoomForPages(int64_t after_step) : after_step_(after_step) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_IGN);
  }
  ~NoRoomForPages() override { limit(before_.rlim_cur); }
  NoRoomForPages(const NoRoomForPages&) = delete;
  NoRoomForPages& operator=(const NoRoomForPages&) = delete;

  void on_step(int64_t step, int64_t, const StepOutcome&, int64_t) override {
    if (step == after_step_) limit(4096);
  }
  void on_decision(const std::string& text) override {
    if (text.find("is left in its midst") != std::string::npos) limit(before_.rlim_cur);
  }

 private:
  void limit(rlim_t bytes) const {
    const rlimit limits{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limits);
  }

  const int64_t after_step_;
  rlimit before_{};
};

class InterruptTest : public ScratchTraining {
 protected:
  TrainOptions options(const std::string& model = "mlp") const {
    TrainOptions o = ScratchTraining::options(model);
    o.steps = 4;
    o.validate_every = 4;
    return o;
  }
};

/// Stops a training at every `stride`-th operator after its second step. Expects that it leaves the third step there,
/// or ends it when gradients were complete, and that a resumed training equals a whole one.
void expect_resumed_equals_whole(TrainOptions options, int64_t stride) {
  TrainOptions whole = options;
  whole.checkpoint.folder.clear();
  const TrainResult expected = run(whole);
  int64_t left = 0, ended = 0;
  for (int64_t operators = 1; ended == 0; operators += stride) {
    std::filesystem::remove_all(options.checkpoint.folder);
    StopAtOperator stop(2, operators);
    TrainOptions first = options;
    first.checkpoint.resume = false;
    TrainResult before = train(first, {}, stop, stop.requests());
    ASSERT_TRUE(before.interrupted) << operators;
    ASSERT_GE(before.losses.size(), 2u) << operators;
    ++(before.losses.size() == 2 ? left : ended);
    options.checkpoint.resume = true;
    const TrainResult after = run(options);
    EXPECT_EQ(after.resumed_from_step, static_cast<int64_t>(before.losses.size()));
    before.losses.insert(before.losses.end(), after.losses.begin(), after.losses.end());
    EXPECT_EQ(before.losses, expected.losses) << operators;
    EXPECT_EQ(after.weights_sha256, expected.weights_sha256) << operators;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "stopped after " << operators << " operators";
  }
  EXPECT_GE(left, 5);
}

}  // namespace

TEST_F(InterruptTest, AtAnyOperatorLeavesTheStateOfTheLastWholeStep) {
  TrainOptions o = options();
  o.optimizer.accumulate = 2;
  expect_resumed_equals_whole(o, 13);
}

TEST_F(InterruptTest, SoItDoesWithRunningStatistics) {
  TrainOptions o = options("resnet50");
  o.data.source = "synthetic:33";
  o.model.filters = 2;
  expect_resumed_equals_whole(o, 601);
}

TEST_F(InterruptTest, SoItDoesWithDropoutUnderABudget) {
  TrainOptions o = options("bert-base");
  o.model.layers = 1;
  o.model.hidden = 64;
  o.memory.budget = BudgetRequest::parse("95%");
  expect_resumed_equals_whole(o, 97);
}

TEST_F(InterruptTest, SoItDoesWithKfacInAStepThatUpdatesFactors) {
  TrainOptions o = options();
  o.kfac.enabled = true;
  o.optimizer.kind = OptimizerKind::sgd;
  o.optimizer.lr = 0.1;
  o.kfac.preconditioner.factor_interval = 1;
  o.kfac.preconditioner.inverse_interval = 2;
  expect_resumed_equals_whole(o, 23);
}

TEST_F(InterruptTest, InOperatorsThatRunInWindowsToo) {
  TrainOptions o = options("unet3d");
  o.data.source = "synthetic:16";
  o.data.batch = 1;
  o.model.filters = 4;
  o.memory.split_bytes = 16 << 10;
  expect_resumed_equals_whole(o, 997);
}

TEST_F(InterruptTest, ADiskThatTakesNoPagesEndsTheRunWithACheckpointOfTheLastWholeStep) {
  TrainOptions o = options("unet3d");
  o.data.source = "synthetic:32";
  o.data.batch = 1;
  o.model.filters = 4;
  o.memory.budget = BudgetRequest::parse("70%");
  o.memory.host_budget = BudgetRequest::parse("2MiB");
  o.memory.disk = dir_.string();
  const TrainResult whole = run(o);
  std::filesystem::remove_all(o.checkpoint.folder);
  NoRoomForPages no_room(2);
  try {
    train(o, {}, no_room);
    ADD_FAILURE() << "trained without a disk";
  } catch (const DiskError& error) {
    EXPECT_NE(std::string(error.what()).find("File too large"), std::string::npos) << error.what();
  }
  o.checkpoint.resume = true;
  const TrainResult after = run(o);
  EXPECT_EQ(after.resumed_from_step, 2);
  EXPECT_EQ(after.weights_sha256, whole.weights_sha256);
}

TEST_F(InterruptTest, BeforeTheFirstStepEndsWithoutACheckpoint) {
  StopAtOperator stop(0, 1);
  const TrainOptions o = options();
  const TrainResult result = train(o, {}, stop, stop.requests());
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.losses.empty());
  EXPECT_TRUE(result.metric.empty());
  EXPECT_FALSE(result.weights_sha256.empty());
  EXPECT_FALSE(std::filesystem::exists(checkpoint_file(o.checkpoint.folder)));
}

TEST_F(InterruptTest, WhileTheBudgetIsChosenHasNoResults) {
  StopAtOperator stop(0, 1);
  TrainOptions o = options();
  o.memory.budget = BudgetRequest::parse("95%");
  EXPECT_THROW(train(o, {}, stop, stop.requests()), Interrupted);
}

TEST_F(InterruptTest, InAValidationKeepsTheStepBeforeIt) {
  TrainOptions o = options();
  o.validate_every = 2;
  const TrainResult whole = run(o);
  std::filesystem::remove_all(o.checkpoint.folder);
  StopAtOperator stop(2, 1);
  const TrainResult first = train(o, {}, stop, stop.requests());
  EXPECT_TRUE(first.interrupted);
  EXPECT_EQ(first.losses.size(), 2u);
  EXPECT_EQ(first.metric.size(), 1u) << "the one before the first step";
  EXPECT_NE(stop.decisions().find("the validation after step 2 is left"), std::string::npos) << stop.decisions();
  o.checkpoint.resume = true;
  EXPECT_EQ(run(o).weights_sha256, whole.weights_sha256);
}

}  // namespace spillway
