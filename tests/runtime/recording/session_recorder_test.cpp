// Tests of the record of a Session's steps, from which its report is drawn.
#include "runtime/recording/session_recorder.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "swap/gate/operator_kernels.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"

namespace spillway {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

SessionOptions options_of(int64_t budget_bytes) {
  SessionOptions options;
  options.budget_bytes = budget_bytes;
  options.replay = false;  // so that pages are copied
  return options;
}

/// Runs a step that uses eight tensors of 1 MiB, twice each.
void run_step(RecordedSession& session, const std::string& kind, bool forgotten = false) {
  session.begin_step(kind);
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 8; ++i) kept.push_back(at::full({kMiB / 4}, i).sigmoid());
  for (at::Tensor& tensor : kept) tensor = tensor.tanh();
  kept.clear();
  forgotten ? session.forget_step() : session.end_step();
}

std::set<std::string> lanes_of(const StepRecording& recording) {
  std::set<std::string> lanes;
  for (const TraceEvent& event : recording.events) lanes.insert(event.lane);
  return lanes;
}

TEST(SessionRecorderTest, TheThirdStepOfTheMostFrequentKindIsShown) {
  RecordedSession session(options_of(5 * kMiB));
  run_step(session, "validate");
  for (int i = 0; i < 5; ++i) run_step(session, "train");
  const SessionReport report = session.report();
  EXPECT_EQ(report.kind, "train");
  EXPECT_EQ(report.seconds_by_kind.at("train").size(), 5u);
  EXPECT_EQ(report.seconds_by_kind.at("validate").size(), 1u);
  EXPECT_EQ(report.recording.step, 2);
  EXPECT_GT(report.recording.seconds, 0);
  EXPECT_LE(report.recording.seconds, 1.05 * report.seconds_by_kind.at("train")[2] + 0.01);
  const auto operators = std::count_if(report.recording.events.begin(), report.recording.events.end(),
                                       [](const TraceEvent& event) { return event.name == "aten::tanh"; });
  EXPECT_EQ(operators, 8);
  EXPECT_GE(lanes_of(report.recording).size(), 3u) << "operators, copies out and copies in";
  int64_t peak = 0;
  for (const MemorySample& sample : report.recording.memory)
    peak = std::max(peak, std::accumulate(sample.bytes.begin(), sample.bytes.end(), int64_t{0}));
  EXPECT_LE(peak, 5 * kMiB);
  EXPECT_GT(peak, 4 * kMiB);
}

TEST(SessionRecorderTest, TheFiguresAreTheSessions) {
  RecordedSession session(options_of(5 * kMiB));
  for (int i = 0; i < 3; ++i) run_step(session, "train");
  const SessionReport report = session.report();
  EXPECT_EQ(report.device, "cpu");
  EXPECT_EQ(report.budget_bytes, 5 * kMiB);
  EXPECT_LE(report.peak_bytes, 5 * kMiB);
  EXPECT_GT(report.bytes_out, 0);
  EXPECT_GT(report.bytes_in, 0);
  EXPECT_GE(report.floor_bytes, 2 * kMiB);
  EXPECT_FALSE(report.floor_operator.empty());
  ASSERT_TRUE(report.paging.has_value()) << "the kind was planned";
}

TEST(SessionRecorderTest, AForgottenStepIsNoStep) {
  RecordedSession session(options_of(kUnlimitedBytes));
  run_step(session, "train");
  run_step(session, "train", /*forgotten=*/true);
  SessionReport report = session.report();
  EXPECT_EQ(report.seconds_by_kind.at("train").size(), 1u);
  EXPECT_EQ(report.recording.step, 0);
  run_step(session, "train");
  report = session.report();
  EXPECT_EQ(report.seconds_by_kind.at("train").size(), 2u);
  EXPECT_EQ(report.recording.step, 1);
}

TEST(SessionRecorderTest, WithoutAStepThereAreFiguresAlone) {
  RecordedSession session(options_of(kUnlimitedBytes));
  const SessionReport report = session.report();
  EXPECT_TRUE(report.kind.empty());
  EXPECT_EQ(report.recording.step, -1);
  EXPECT_TRUE(report.recording.events.empty());
}

/// Counts the operators that it was told of.
class CountingObserver final : public OperatorObserver {
 public:
  void before(const c10::OperatorHandle&, const torch::jit::Stack&) override { ++operators; }
  int64_t operators = 0;
};

TEST(SessionRecorderTest, AnObserverOfTheUsersStays) {
  auto observer = std::make_shared<CountingObserver>();
  SessionOptions options = options_of(kUnlimitedBytes);
  options.observer = observer;
  RecordedSession session(options);
  run_step(session, "train");
  EXPECT_GE(observer->operators, 16);
  const SessionReport report = session.report();
  EXPECT_EQ(report.seconds_by_kind.at("train").size(), 1u);
  EXPECT_EQ(report.recording.step, -1) << "nothing else may observe";
}

/// Kernels of LibTorch, with a clock that fails when `fails` is set, as a device does that has no room for its
/// libraries.
class FailingClock final : public swap::OperatorKernels {
 public:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    op.redispatchBoxed(keys, &stack);
  }
  std::unique_ptr<ComputeClock> make_clock() override {
    class Clock final : public ComputeClock {
     public:
      explicit Clock(const bool& fails) : fails_(fails) {}
      void begin() override { ++operators_; }
      void end() override {}
      void pause() override {}
      void resume() override {}
      std::vector<Times> take() override {
        if (fails_) throw std::runtime_error("the clock stands");
        return std::vector<Times>(std::exchange(operators_, 0));
      }
      void forget() override { operators_ = 0; }
      bool is_free() const override { return true; }

     private:
      const bool& fails_;
      size_t operators_ = 0;
    };
    return std::make_unique<Clock>(fails);
  }
  bool fails = false;
};

TEST(RecordedSessionTest, AStepThatFailsToEndIsNotOpen) {
  auto kernels = std::make_shared<FailingClock>();
  SessionOptions options = options_of(kUnlimitedBytes);
  options.kernels = kernels;
  RecordedSession session(options);
  run_step(session, "train");
  kernels->fails = true;
  EXPECT_THROW(run_step(session, "train"), std::runtime_error);
  kernels->fails = false;
  run_step(session, "train");
  EXPECT_EQ(session.report().seconds_by_kind.at("train").size(), 2u) << "the one that failed is no step";
}

TEST(RecordedSessionTest, StepsDoNotNestAndEndOnce) {
  RecordedSession session(options_of(kUnlimitedBytes));
  session.begin_step("train");
  EXPECT_THROW(session.begin_step("inner"), std::logic_error);
  session.end_step();
  session.end_step();
  session.begin_step("train");
  session.close();
  session.close();
  EXPECT_THROW(session.begin_step("train"), std::logic_error);
}

}  // namespace
}  // namespace spillway
