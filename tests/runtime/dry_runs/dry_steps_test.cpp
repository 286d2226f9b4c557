// Tests of the steps that dry runs tell of the ranks of a world that is not there.
#include "runtime/dry_runs/dry_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "ddl/comm/simulated_world.h"
#include "ddl/comm/thread_world.h"
#include "runtime/dry_runs/cluster_times.h"
#include "runtime/dry_runs/machine_times.h"
#include "runtime/dry_runs/roofline_times.h"
#include "runtime/dry_runs/simulated_workers.h"
#include "runtime/training/training_run.h"
#include "swap/shapes/shape_kernels.h"
#include "tests/runtime/dry_runs/small_options.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

ddl::Comm simulated(int rank, const char* shape, int world) {
  return ddl::make_comm(ddl::simulated_communicator(rank, ddl::Levels::parse(shape, world)));
}

struct Way {
  kfac::Strategy strategy;
  double fraction;
  bool overlap_factors = false;
};

struct RanksTest : ::testing::TestWithParam<Way> {};

std::vector<StepTrace> traces_of(const RunContext& context) {
  TrainingRun run(context, kUnlimitedBytes, context.options.kfac.preconditioner.grad_worker_frac);
  for (int i = 0; i < 3; ++i) run.step();
  std::vector<StepTrace> all;
  for (const StepTrace* trace : run.session().traces()) all.push_back(*trace);
  return all;
}

/// The collectives of a simulated world send nothing, and hold the memory of real ones. So a run with LibTorch's own
/// kernels tells what a rank holds.
TEST_P(RanksTest, EachRanksTraceIsThatOfARealRun) {
  TrainOptions options = small_options();
  options.kfac.preconditioner.strategy = GetParam().strategy;
  options.kfac.preconditioner.grad_worker_frac = GetParam().fraction;
  options.kfac.preconditioner.overlap_factors = GetParam().overlap_factors;
  for (int rank : {0, 3}) {
    SCOPED_TRACE(rank);
    RunContext context = make_context(options, simulated(rank, "2x2", 4));
    const auto real = traces_of(context);
    context.kernels = make_shape_kernels();
    const auto dry = traces_of(context);
    ASSERT_EQ(dry.size(), real.size());
    for (size_t t = 0; t < real.size(); ++t) {
      ASSERT_EQ(dry[t].operators.size(), real[t].operators.size());
      for (size_t i = 0; i < real[t].operators.size(); ++i) {
        ASSERT_EQ(dry[t].operators[i].name, real[t].operators[i].name);
        ASSERT_EQ(dry[t].operators[i].leased_bytes, real[t].operators[i].leased_bytes);
        ASSERT_EQ(dry[t].operators[i].unpaged_bytes, real[t].operators[i].unpaged_bytes);
      }
      EXPECT_GE(dry[t].unconstrained_peak_bytes(), real[t].unconstrained_peak_bytes());
      EXPECT_LE(dry[t].unconstrained_peak_bytes(), real[t].unconstrained_peak_bytes() * 21 / 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, RanksTest,
                         ::testing::Values(Way{kfac::Strategy::comm_opt, 1}, Way{kfac::Strategy::mem_opt, 0.25},
                                           Way{kfac::Strategy::hybrid, 0.5}, Way{kfac::Strategy::owner_reduce, 0.25},
                                           Way{kfac::Strategy::dp, 0.25}, Way{kfac::Strategy::hybrid, 0.5, true}));

std::shared_ptr<KernelTimes> fixed_times() {
  return std::make_shared<ClusterTimes>(std::make_shared<RooflineTimes>(built_in_profile("a100").kernels));
}

ddl::Comm with_links(int rank, const char* shape, int world) {
  const ClusterShape cluster = ClusterShape::parse(shape, world);
  return ddl::make_comm(ddl::simulated_communicator(rank, cluster.levels), costs_of(built_in_profile("a100"), cluster));
}

const StepTrace& trace_of(const RankSteps& steps, const std::string& kind) {
  for (const KindOfStep& own : steps.kinds)
    if (own.trace.kind == kind) return own.trace;
  throw std::runtime_error("no steps of kind " + kind);
}

TEST(DryStepsTest, KindsHaveTheirSharesAndAllAreThere) {
  TrainOptions options = small_options();
  options.kfac.preconditioner.factor_interval = 10;
  options.kfac.preconditioner.inverse_interval = 100;
  const RankSteps steps = dry_steps(options, nullptr, fixed_times());
  ASSERT_EQ(steps.kinds.size(), 4);  // with validation
  double sum = 0;
  for (const KindOfStep& kind : steps.kinds) sum += kind.share;
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_GT(trace_of(steps, "factor+decompose").compute_seconds(), trace_of(steps, "factor").compute_seconds());
  EXPECT_GT(trace_of(steps, "factor").compute_seconds(), trace_of(steps, "plain").compute_seconds());
  EXPECT_GT(steps.floor_bytes, 0);
  EXPECT_LT(steps.floor_bytes, steps.peak_bytes);
}

TEST(DryStepsTest, GradientsTravelBesideBackward) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  options.gradients.bucket_bytes = 64 << 10;
  const StepTrace trace = trace_of(dry_steps(options, with_links(0, "2x2", 4), fixed_times()), "plain");
  ASSERT_GT(trace.messages.size(), 1);
  for (const Message& message : trace.messages) {
    EXPECT_GT(message.seconds, 0);
    EXPECT_LT(message.after, message.before);
    EXPECT_LE(message.before, std::ssize(trace.operators));
  }
  // The first bucket leaves while backward still runs, and is awaited when it has ended.
  EXPECT_LT(trace.messages.front().after, trace.messages.back().after);
  options.gradients.overlap = false;
  EXPECT_TRUE(trace_of(dry_steps(options, with_links(0, "2x2", 4), fixed_times()), "plain").messages.empty());
}

TEST(DryStepsTest, RanksPreconditionAllTheirLayersBeforeTheyExchangeThem) {
  // A rank that waits for another one's layer before it computes its own one would make them take turns.
  TrainOptions options = small_options();
  options.kfac.preconditioner.grad_worker_frac = 0.5;
  const StepTrace trace = trace_of(dry_steps(options, with_links(0, "2", 2), fixed_times()), "plain");
  const auto is = [](auto... names) {
    return [names...](const OperatorRecord& op) { return (... || (op.name == std::string_view(names))); };
  };
  const auto& operators = trace.operators;
  const auto first = std::find_if(operators.begin(), operators.end(), is("spillway::broadcast_"));
  ASSERT_NE(first, operators.end());
  const auto is_product = is("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm_", "aten::addmm_");
  EXPECT_GT(std::count_if(operators.begin(), first, is_product), 0);
  EXPECT_EQ(std::count_if(first, operators.end(), is_product), 0);
}

TEST(DryStepsTest, ASlowerNetworkMakesCollectivesLonger) {
  TrainOptions options = small_options();
  options.kfac.preconditioner.strategy = kfac::Strategy::mem_opt;
  const auto collectives = [&](const char* shape) {
    const StepTrace trace = trace_of(dry_steps(options, with_links(0, shape, 4), fixed_times()), "factor+decompose");
    double seconds = 0;
    for (const OperatorRecord& op : trace.operators)
      if (op.name.starts_with("spillway::")) seconds += op.seconds;
    return seconds;
  };
  EXPECT_GT(collectives("1x4"), collectives("4"));
}

TEST(DryStepsTest, RanksThatDoTheSameWorkCountOnce) {
  const auto ranks_of = [](const TrainOptions& options, int world) {
    return ranks_that_differ(preconditioned_layers(options), options.kfac.preconditioner, world);
  };
  TrainOptions options = small_options();
  options.kfac.preconditioner.strategy = kfac::Strategy::comm_opt;
  options.kfac.preconditioner.grad_worker_frac = 1;
  EXPECT_EQ(ranks_of(options, 1), std::vector<int>{0});
  const auto few = ranks_of(options, 64);
  EXPECT_LE(few.size(), 4);
  EXPECT_EQ(few.front(), 0);
  options.kfac.enabled = false;
  EXPECT_EQ(ranks_of(options, 64), std::vector<int>{0});
}

TrainOptions of_pipeline() {
  TrainOptions options = small_options();
  options.optimizer.accumulate = 2;
  options.pipeline.ranks = 2;
  options.kfac.preconditioner.skip = {"^head"};
  return options;
}

std::vector<RankSteps> pipeline_steps(const TrainOptions& options) {
  return dry_pipeline_steps(
      options, 2, [](int rank) { return simulated(rank, "2", 2); }, fixed_times());
}

TEST(DryStepsTest, LateRefreshesOfALongIntervalHaveNoSolversThread) {
  TrainOptions options = of_pipeline();
  options.kfac.preconditioner.factor_interval = options.kfac.preconditioner.inverse_interval = 10;
  options.kfac.preconditioner.staleness = 3;
  options.kfac.preconditioner.eigen_rank = kfac::EigenRank::of(4);  // a thread's bases are full
  for (const kfac::Method method : {kfac::Method::eigen, kfac::Method::pi}) {
    options.kfac.preconditioner.method = method;
    const std::vector<RankSteps> all = pipeline_steps(options);
    ASSERT_EQ(all.size(), 2);
    for (const RankSteps& steps : all) {
      double shares = 0;
      for (const KindOfStep& kind : steps.kinds) {
        EXPECT_EQ(kind.trace.kind.find("launch"), std::string::npos) << kind.trace.kind;
        shares += kind.share;
      }
      EXPECT_NEAR(shares, 1, 1e-9);
    }
    options.kfac.preconditioner.eigen_rank = kfac::EigenRank::full();
  }
  options.pipeline.choose_interval = true;
  EXPECT_EQ(pipeline_steps(options).size(), 2);
  options.pipeline.choose_interval = false;
  options.kfac.preconditioner.staleness = 10;
  EXPECT_NE(
      refusal([&] { (void)pipeline_steps(options); }).find("staleness is 10; allowed with refresh rolling is less"),
      std::string::npos)
      << "a run refuses it too";
}

TEST(DryStepsTest, ARankOfChimeraNeedsALayerForKfacInOneOfItsStages) {
  TrainOptions options = of_pipeline();
  options.pipeline.schedule = PipelineSchedule::chimera;
  options.pipeline.cut = {11, 1};  // the last head alone, which K-FAC skips
  EXPECT_EQ(pipeline_steps(options).size(), 2);
  options.pipeline.schedule = PipelineSchedule::gpipe;
  EXPECT_NE(refusal([&] { (void)pipeline_steps(options); }).find("rank 1 has no layer that K-FAC preconditions"),
            std::string::npos);
}

struct MachineTimesTest : ScratchFolder {};

TEST_F(MachineTimesTest, TimesAreMeasuredOnceAndRemembered) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  double first = 0;
  swap::HostGaps gaps;
  {
    MachineTimes times(dir_);
    (void)dry_steps(options, nullptr, times.kernels());
    EXPECT_GT(times.measure_missing(), 0);
    EXPECT_EQ(times.measure_missing(), 0);
    first = trace_of(dry_steps(options, nullptr, times.kernels()), "plain").compute_seconds();
    gaps = times.kernels()->gaps();
    for (const double seconds : {gaps.forward, gaps.backward}) {
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, 0.01);
      EXPECT_NE(seconds, swap::HostGaps().forward) << "it is the default";
    }
  }
  MachineTimes again(dir_);
  EXPECT_EQ(trace_of(dry_steps(options, nullptr, again.kernels()), "plain").compute_seconds(), first);
  EXPECT_EQ(again.measure_missing(), 0);
  EXPECT_EQ(again.kernels()->gaps().forward, gaps.forward);
  EXPECT_EQ(again.kernels()->gaps().backward, gaps.backward);
}

TEST_F(MachineTimesTest, AFileOfOthersIsNotUsed) {
  EXPECT_GT(MachineTimes(dir_).copy_rate(), 0);
  for (const auto& file : std::filesystem::directory_iterator(dir_)) write_file(file.path(), "{ broken");
  EXPECT_GT(MachineTimes(dir_).copy_rate(), 0);
}

struct SimulatedWorkersTest : ScratchFolder {};

TEST_F(SimulatedWorkersTest, AllRanksTakeTheChoiceOfTheFirstOne) {
  TrainOptions options = small_options();
  options.kfac.choose_grad_worker_frac = true;
  options.kfac.preconditioner.strategy = kfac::Strategy::automatic;
  ddl::ThreadWorld world({0, 0});
  std::vector<GradWorkerChoice> choices(2);
  ddl::run_ranks(world, [&](ddl::Communicator& ranks) {
    const auto comm = ddl::make_comm(ranks.duplicate());
    choices[ranks.rank()] = SimulatedWorkers(comm, dir_).choose(options, int64_t{1} << 30);
  });
  EXPECT_EQ(choices[0].strategy, choices[1].strategy);
  EXPECT_EQ(choices[0].grad_worker_frac, choices[1].grad_worker_frac);
  EXPECT_NE(choices[0].reason.find("next"), std::string::npos);
}

TEST_F(SimulatedWorkersTest, AnErrorOfTheFirstRankReachesAll) {
  TrainOptions options = small_options();
  options.kfac.choose_grad_worker_frac = true;
  options.data.source = "synthetic:30";  // no multiple of 16
  ddl::ThreadWorld world({0, 0});
  int refused = 0;
  std::mutex mutex;
  ddl::run_ranks(world, [&](ddl::Communicator& ranks) {
    SimulatedWorkers planner(ddl::make_comm(ranks.duplicate()), dir_);
    EXPECT_THROW((void)planner.choose(options, int64_t{1} << 30), BadRequest);
    const std::lock_guard lock(mutex);
    ++refused;
  });
  EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace spillway
