// Tests of plans that ranks of a pipeline make again from later times.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "runtime/pipeline/pipeline_clock.h"
#include "runtime/training/run_context.h"
#include "runtime/training/training_run.h"

namespace spillway {
using namespace runtime;
namespace {

constexpr int kRanks = 2;
constexpr int64_t kInterval = 3, kSteps = kInterval * 33;

/// A clock by which K-FAC's pieces take next to no time at first, and later longer than a pipeline's items.
class ErraticClock final : public PipelineClock {
 public:
  explicit ErraticClock(uint64_t seed) : random_(seed) {}
  void start() override { ++passes_; }
  double now() const override {
    if (!std::exchange(item_is_done_, false))
      time_ += std::uniform_real_distribution(0.5, 1.0)(random_) * (is_late() ? kLatePiece : 1e-3);
    return time_;
  }
  void done(const pipe::Item&) override {
    time_ += 1;
    item_is_done_ = true;
  }

 private:
  static constexpr double kLatePiece = 6;  // of an item's seconds, where an order for short pieces is a fifth too long
  bool is_late() const { return passes_ > 4 * kInterval; }

  mutable std::mt19937_64 random_;
  mutable double time_ = 0;
  mutable bool item_is_done_ = false;
  int64_t passes_ = 0;
};

/// A clock by which everything takes twice as long after a while.
class SlowerClock final : public PipelineClock {
 public:
  void start() override { ++passes_; }
  double now() const override {
    if (!std::exchange(item_is_done_, false)) time_ += 0.05 * speed();
    return time_;
  }
  void done(const pipe::Item&) override {
    time_ += speed();
    item_is_done_ = true;
  }

 private:
  double speed() const { return passes_ > 4 * kInterval ? 2 : 1; }

  mutable double time_ = 0;
  mutable bool item_is_done_ = false;
  int64_t passes_ = 0;
};

struct Outcome {
  int plans = 0;
  double loss = 0;
  std::string weights;
};

TrainOptions small_options() {
  TrainOptions options;
  options.model.name = "mlp";
  options.data.source = "synthetic:64";
  options.data.cases = 32;
  options.data.batch = 2;
  options.steps = kSteps;
  options.optimizer.accumulate = 4;
  options.kfac.enabled = true;
  options.kfac.preconditioner.inverse_interval = kInterval;
  options.kfac.choose_grad_worker_frac = false;
  options.pipeline.ranks = kRanks;
  options.pipeline.cut = {1, 2};
  return options;
}

ddl::MpiRuntime* mpi = nullptr;

Outcome train(bool erratic) {
  const auto comm = ddl::make_comm(mpi->world());
  RunContext context = make_context(small_options(), comm);
  if (erratic) context.clock = std::make_shared<ErraticClock>(context.rank());
  TrainingRun run(context, kUnlimitedBytes, 1);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) outcome.loss = run.step().loss;
  outcome.plans = run.in_bubbles()->plans();
  outcome.weights = run.weights_sha256();
  return outcome;
}

TEST(PlanAgainTest, PlansOfOtherTimesChangeNoBit) {
  const Outcome steady = train(false), erratic = train(true);
  EXPECT_GE(steady.plans, 1);
  EXPECT_GE(erratic.plans, 2);
  EXPECT_EQ(erratic.loss, steady.loss);
  EXPECT_EQ(erratic.weights, steady.weights);
}

TEST(PlanAgainTest, APlanThatStaysIsToldByLaterTimes) {
  const auto comm = ddl::make_comm(mpi->world());
  RunContext context = make_context(small_options(), comm);
  context.clock = std::make_shared<SlowerClock>();
  TrainingRun run(context, kUnlimitedBytes, 1);
  double first = 0;
  for (int64_t step = 0; step < 9 * kInterval; ++step) {
    run.step();
    if (first == 0 && run.in_bubbles()->plans() > 0) first = run.in_bubbles()->filled().seconds;
  }
  EXPECT_EQ(run.in_bubbles()->plans(), 1);
  EXPECT_GT(first, 0);
  // Half of the cycles between were slow already when the plan was weighed again, or more.
  EXPECT_GT(run.in_bubbles()->filled().seconds, 1.4 * first);
  EXPECT_LT(run.in_bubbles()->filled().seconds, 2.1 * first);
}

/// Makes a folder that all ranks know, and that no other process uses.
std::string make_shared_folder(const ddl::Comm& comm) {
  int64_t process = getpid();
  ddl::broadcast(*comm->communicator, std::as_writable_bytes(std::span(&process, 1)), 0);
  const auto folder = std::filesystem::temp_directory_path() / ("spillway-plan-again-" + std::to_string(process));
  std::filesystem::create_directories(folder);
  return folder.string();
}

TEST(PlanAgainTest, AResumedRunCountsItsOwnCycles) {
  const auto comm = ddl::make_comm(mpi->world());
  TrainOptions options = small_options();
  options.checkpoint.folder = make_shared_folder(comm);
  constexpr int64_t kSaved = 5 * kInterval + 1;
  {
    const RunContext context = make_context(options, comm);
    TrainingRun run(context, kUnlimitedBytes, 1);
    for (int64_t step = 0; step < kSaved; ++step) run.step();
    run.save();
  }
  ddl::barrier(*comm->communicator);
  options.checkpoint.resume = true;
  RunContext context = make_context(options, comm);
  context.clock = std::make_shared<SlowerClock>();
  TrainingRun run(context, kUnlimitedBytes, 1);
  run.resume();
  // Its first plan is made at the end of cycle 7 of the whole training. It is weighed in cycle 8 of its own, the 13th.
  double first = 0;
  for (int64_t step = kSaved; step < 13 * kInterval; ++step) {
    run.step();
    if (first == 0 && run.in_bubbles()->plans() > 0) first = run.in_bubbles()->filled().seconds;
  }
  EXPECT_GT(first, 0);
  EXPECT_EQ(run.in_bubbles()->filled().seconds, first) << "no later times are known yet";
  run.step();
  EXPECT_GT(run.in_bubbles()->filled().seconds, 1.2 * first) << "what was slower since is known";
  ddl::barrier(*comm->communicator);
  if (context.rank() == 0) std::filesystem::remove_all(options.checkpoint.folder);
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  spillway::ddl::MpiRuntime mpi;
  spillway::mpi = &mpi;
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
