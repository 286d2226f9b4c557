// Tests of plans that ranks of a pipeline make again from later times.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>

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
  outcome.plans = run.in_waits()->plans();
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
    if (first == 0 && run.in_waits()->plans() > 0) first = run.in_waits()->filled().seconds;
  }
  EXPECT_EQ(run.in_waits()->plans(), 1);
  EXPECT_GT(first, 0);
  // Half of the cycles between were slow already when the plan was weighed again, or more.
  EXPECT_GT(run.in_waits()->filled().seconds, 1.4 * first);
  EXPECT_LT(run.in_waits()->filled().seconds, 2.1 * first);
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
