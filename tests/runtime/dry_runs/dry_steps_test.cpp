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
#include "core/memory/device_memory.h"
#include "ddl/comm/simulated_world.h"
#include "ddl/comm/thread_world.h"
#include "runtime/dry_runs/changes.h"
#include "runtime/dry_runs/cluster_times.h"
#include "runtime/dry_runs/machine_times.h"
#include "runtime/dry_runs/make_plan.h"
#include "runtime/dry_runs/roofline_times.h"
#include "runtime/dry_runs/simulated_workers.h"
#include "runtime/training/training_run.h"
#include "swap/gate/session_options.h"
#include "swap/shapes/shape_kernels.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

TrainOptions small_options() {
  TrainOptions options;
  options.model.name = "unet3d";
  options.model.filters = 2;
  options.data.source = "synthetic:32";
  options.data.cases = 8;
  options.memory.split_bytes = kUnlimitedBytes;
  options.optimizer.kind = OptimizerKind::sgd;
  options.kfac.enabled = true;
  options.kfac.choose_grad_worker_frac = false;
  return options;
}

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

struct MachineTimesTest : ScratchFolder {};

TEST_F(MachineTimesTest, TimesAreMeasuredOnceAndRemembered) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  double first = 0;
  {
    MachineTimes times(dir_);
    (void)dry_steps(options, nullptr, times.kernels());
    EXPECT_GT(times.measure_missing(), 0);
    EXPECT_EQ(times.measure_missing(), 0);
    first = trace_of(dry_steps(options, nullptr, times.kernels()), "plain").compute_seconds();
  }
  MachineTimes again(dir_);
  EXPECT_EQ(trace_of(dry_steps(options, nullptr, again.kernels()), "plain").compute_seconds(), first);
  EXPECT_EQ(again.measure_missing(), 0);
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

/// A V100 for small models: its libraries take nothing, and its host little time.
DeviceProfile small_gpu() {
  DeviceProfile profile = built_in_profile("v100");
  profile.library_bytes = 0;
  profile.kernels.gap_seconds = profile.kernels.library_gap_seconds = 1e-6;
  return profile;
}

PlannedCluster cluster_of(const char* shape, int world) {
  return {small_gpu(), ClusterShape::parse(shape, world), nullptr};
}

TEST(MakePlanTest, AFrontierTellsWhatEachBudgetTakes) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  options.memory.budget = BudgetRequest::parse("90%");
  PlannedCluster cluster = cluster_of("1", 1);
  PlanRequest request{
      .options = options, .size = 32, .budgets = {BudgetRequest::parse("90%"), BudgetRequest::parse("1%")}};
  request.sizes = {{32, options}};
  request.largest_batch = true;
  const PlanReport report = make_plan(request, cluster);
  ASSERT_TRUE(report.plan.is_feasible());
  EXPECT_GE(report.plan.best().forecast.seconds, (1 - 1e-9) * report.unlimited.best().forecast.seconds);
  EXPECT_LE(report.plan.best().forecast.peak_bytes, report.plan.budget_bytes);
  ASSERT_EQ(report.frontier.size(), 1);
  const auto& points = report.frontier[0].points;
  EXPECT_TRUE(points[0].plan.is_feasible());
  EXPECT_GE(points[0].largest_batch, 1);
  EXPECT_FALSE(points[1].plan.is_feasible());
  EXPECT_EQ(points[1].largest_batch, 0);
}

/// KAISA's finding: frequent decompositions favor few gradient workers, and rare ones many, because eigenbases travel
/// then as rarely and gradients need not travel at all.
TEST(MakePlanTest, TheChosenFractionFlipsWithTheInterval) {
  TrainOptions options = small_options();
  options.model.filters = 32;
  options.kfac.choose_grad_worker_frac = true;
  options.kfac.preconditioner.eigen_rank = kfac::EigenRank::full();
  PlannedCluster cluster = cluster_of("1x8", 8);
  const auto chosen = [&](double interval) {
    options.kfac.preconditioner.factor_interval = interval;
    options.kfac.preconditioner.inverse_interval = interval;
    RunPlanner planner = make_planner(options, cluster);
    return planner.plan(kUnlimitedBytes).best().choice.workers.grad_worker_frac;
  };
  EXPECT_LT(chosen(1), chosen(1000));
}

/// Few gradient workers hold few eigenbases. Where memory is short and copies are slow, that counts more than the
/// gradients that must be sent.
TEST(MakePlanTest, TheChosenFractionFlipsWithTheBudget) {
  TrainOptions options = small_options();
  options.model.filters = 32;
  options.kfac.choose_grad_worker_frac = true;
  options.kfac.preconditioner.eigen_rank = kfac::EigenRank::full();
  options.kfac.preconditioner.factor_interval = options.kfac.preconditioner.inverse_interval = 1000;
  DeviceProfile slow = small_gpu();
  slow.copies.out_bytes_per_second = slow.copies.in_bytes_per_second = 1e9;
  PlannedCluster cluster(slow, ClusterShape::parse("1x8", 8), nullptr);
  RunPlanner planner = make_planner(options, cluster);
  const RunPlan unlimited = planner.plan(kUnlimitedBytes);
  const RunPlan limited = planner.plan(unlimited.best().unlimited_bytes / 2);
  ASSERT_TRUE(limited.is_feasible());
  EXPECT_LT(limited.best().choice.workers.grad_worker_frac, unlimited.best().choice.workers.grad_worker_frac);
}

/// The pager keeps small pages on a GPU, because their copies cost the host time. Plans do so too.
TEST(MakePlanTest, SmallPagesAreCostlyToCopyOnGpusAlone) {
  const TrainOptions options = small_options();
  PlannedCluster gpu(built_in_profile("v100"), ClusterShape::parse("", 1), nullptr);
  EXPECT_EQ(gpu.schedule_inputs(options).costly_bytes, DeviceMemory::charge_of(SessionOptions().small_page_bytes));
  DeviceProfile cores = built_in_profile("v100");
  cores.copies.compute_slowdown = 0.5;
  PlannedCluster cpu(cores, ClusterShape::parse("", 1), nullptr);
  EXPECT_EQ(cpu.schedule_inputs(options).costly_bytes, 0);
}

/// A U-Net of 96³ has operators above 224 MiB, and none above 8 GiB.
TEST(MakePlanTest, OperatorsAreSplitAsOnTheDeviceThatIsPlannedFor) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  options.data.source = "synthetic:96";
  options.model.filters = 16;
  const DeviceProfile gpu = small_gpu();
  DeviceProfile cores = gpu;
  cores.copies.compute_slowdown = 0.5;
  const auto floor = [&](const DeviceProfile& profile, int64_t split_bytes) {
    options.memory.split_bytes = split_bytes;
    return PlannedCluster(profile, ClusterShape::parse("", 1), nullptr).floor_bytes(options, {});
  };
  const int64_t whole = floor(cores, kUnlimitedBytes), split = floor(cores, kDefaultSplitBytes);
  ASSERT_LT(split, whole);
  EXPECT_EQ(floor(cores, kSplitByDevice), split);
  EXPECT_EQ(floor(gpu, kSplitByDevice), floor(gpu, kDefaultGpuSplitBytes));
  EXPECT_EQ(floor(gpu, kSplitByDevice), floor(gpu, kUnlimitedBytes));
  EXPECT_LT(floor(gpu, kDefaultSplitBytes), floor(gpu, kUnlimitedBytes));
}

/// An H100 counted 1.65 GiB at the peak of this step, and refused budgets below 512 MiB, of which its libraries took
/// 242 MiB. oneDNN's scratch, which depends on this processor, is not in it.
TEST(MakePlanTest, ABudgetOfAGpuHasRoomForLibrariesAndForNoScratchOfTheCpu) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  options.data.source = "synthetic:96";
  options.data.batch = 1;
  options.model.filters = 16;
  options.optimizer.kind = OptimizerKind::adam;
  PlannedCluster gpu(built_in_profile("h100"), ClusterShape::parse("", 1), nullptr);
  const WeighedChoice found = make_planner(options, gpu).plan(kUnlimitedBytes).best();
  EXPECT_NEAR(static_cast<double>(found.unlimited_bytes) / (int64_t{1} << 30), 1.65, 0.01);
  EXPECT_NEAR(static_cast<double>(found.floor_bytes) / (1 << 20), 512, 1);
}

/// The host launches small operators one after another, and large ones hide that.
TEST(MakePlanTest, AGpuWaitsForItsHostWhereOperatorsAreSmall) {
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  const auto seconds = [&](const char* data, int64_t filters, double gap_seconds) {
    options.data.source = data;
    options.model.filters = filters;
    DeviceProfile profile = small_gpu();
    profile.kernels.gap_seconds = profile.kernels.library_gap_seconds = gap_seconds;
    PlannedCluster cluster(profile, ClusterShape::parse("", 1), nullptr);
    return make_planner(options, cluster).plan(kUnlimitedBytes).best().forecast.seconds;
  };
  EXPECT_GT(seconds("synthetic:32", 2, 50e-6), 3 * seconds("synthetic:32", 2, 0));
  EXPECT_LT(seconds("synthetic:96", 32, 50e-6), 1.1 * seconds("synthetic:96", 32, 0));
}

/// Larger worlds weigh few shares. The best of all is hardly better.
TEST(MakePlanTest, ThePlanIsWithin3PercentOfTheBestOfAllShares) {
  TrainOptions options = small_options();
  options.model.filters = 16;
  options.kfac.choose_grad_worker_frac = true;
  options.kfac.preconditioner.eigen_rank = kfac::EigenRank::full();
  PlannedCluster cluster = cluster_of("4x6", 24);
  std::vector<PlanChoice> all;
  for (const kfac::StrategyChoice& workers : kfac::exact_choices(24))
    if (workers.strategy == kfac::Strategy::hybrid) all.push_back({.workers = workers});
  ASSERT_EQ(all.size(), 24);
  const auto layers = preconditioned_layers(options);
  RunPlanner exhaustive(all, cluster.schedule_inputs(options),
                        [&](const PlanChoice& choice) { return cluster.steps(options, layers, choice); });
  RunPlanner planner = make_planner(options, cluster);
  const int64_t peak = planner.plan(kUnlimitedBytes).best().unlimited_bytes;
  for (int64_t budget : {kUnlimitedBytes, peak * 8 / 10, peak * 6 / 10}) {
    const RunPlan plan = planner.plan(budget), best = exhaustive.plan(budget);
    ASSERT_LT(plan.weighed.size(), best.weighed.size());
    ASSERT_TRUE(plan.is_feasible());
    EXPECT_LE(plan.best().forecast.seconds, 1.03 * best.best().forecast.seconds)
        << plan.reason() << "; all: " << best.reason();
  }
}

TrainOptions small_resnet() {
  TrainOptions options;
  options.model.name = "resnet50";
  options.model.filters = 8;
  options.model.classes = 4;
  options.data.source = "synthetic:64";
  options.data.batch = 8;
  options.data.cases = 16;
  options.optimizer.kind = OptimizerKind::sgd;
  options.kfac.enabled = true;
  return options;
}

TEST(ChangesTest, AreThoseThatWouldChangeTheRun) {
  const auto names = [](const TrainOptions& options, int64_t world) {
    std::vector<std::string> all;
    for (const Change& change : changes(options, world)) all.push_back(change.name);
    return all;
  };
  TrainOptions options = small_resnet();
  EXPECT_EQ(names(options, 4), change_names());
  options.kfac.enabled = false;
  options.data.batch = 1;
  EXPECT_EQ(names(options, 4), (std::vector<std::string>{"amp", "split"}));
  options.precision.amp = Amp::bf16;
  options.memory.split_bytes = int64_t{1} << 20;
  EXPECT_TRUE(names(options, 4).empty());
}

/// Each change's flags say what its options are.
TEST(ChangesTest, FlagsTellTheSameAsTheOptions) {
  for (const Change& change : changes(small_resnet(), 4)) {
    if (change.name == "batch") {
      EXPECT_EQ(change.flags, "--batch 4 --accumulate 2");
      EXPECT_EQ(change.options.data.batch, 4);
      EXPECT_EQ(change.options.optimizer.accumulate, 2);
    }
    if (change.name == "dp") {
      EXPECT_EQ(change.options.kfac.preconditioner.strategy, kfac::Strategy::dp);
    }
    if (change.name == "split") {
      EXPECT_EQ(change.options.memory.split_bytes, kDefaultSplitBytes / 4);
    }
  }
}

TEST(ChangesTest, ASplitIsTheOneOfItsFlagsWhereItIsNoWholeNumberOfMiB) {
  TrainOptions options = small_resnet();
  options.memory.split_bytes = int64_t{90} << 20;  // a quarter is 22.5 MiB
  const Change split = changes(options, 1).back();
  EXPECT_EQ(split.flags, "--split 22MiB");
  EXPECT_EQ(split.options.memory.split_bytes, int64_t{22} << 20);
}

TEST(ChangesTest, AreTakenUntilTheRunFitsAndNoneHelpsMore) {
  PlannedCluster cluster = cluster_of("1", 1);
  TrainOptions options = small_resnet();
  options.kfac.enabled = false;
  options.data.source = "synthetic:224";
  options.data.batch = 32;
  options.memory.split_bytes = kUnlimitedBytes;
  const RunPlan before = make_planner(options, cluster).plan(kUnlimitedBytes);
  options.memory.budget = {.kind = BudgetRequest::Kind::bytes, .bytes = before.best().floor_bytes / 3};
  ASSERT_FALSE(make_planner(options, cluster).plan(options.memory.budget.bytes).is_feasible());
  const TakenChanges changed = take_changes(options, {"batch"}, cluster);
  ASSERT_GE(changed.taken.size(), 2U);
  EXPECT_EQ(changed.options.data.batch * changed.options.optimizer.accumulate, 32) << "as many cases a step";
  EXPECT_TRUE(changed.taken.back().plan.is_feasible());
  EXPECT_EQ(changed.taken.back().flags,
            str("--batch ", changed.options.data.batch, " --accumulate ", changed.options.optimizer.accumulate));
  const std::vector<std::string> names(changed.taken.size(), "batch");
  EXPECT_EQ(make_changes(options, names, 1).options.data.batch, changed.options.data.batch);
}

TEST(ChangesTest, WrongNamesAndBudgetsAreRefused) {
  PlannedCluster cluster = cluster_of("1", 1);
  TrainOptions options = small_resnet();
  EXPECT_THROW((void)take_changes(options, {"amp"}, cluster), BadRequest) << "no budget";
  options.memory.budget = BudgetRequest::parse("50%");
  EXPECT_THROW((void)take_changes(options, {"precision"}, cluster), BadRequest);
  EXPECT_THROW((void)make_changes(options, {"dp"}, 1), BadRequest) << "one rank has nothing to distribute";
}

TEST(MakePlanTest, ARunThatDoesNotFitComesWithProposals) {
  TrainOptions options = small_resnet();
  options.memory.budget = BudgetRequest::parse("1MiB");
  PlannedCluster cluster = cluster_of("1", 1);
  const PlanReport report = make_plan({.options = options, .size = 64}, cluster);
  EXPECT_FALSE(report.plan.is_feasible());
  EXPECT_EQ(report.proposals.size(), changes(options, 1).size());
  options.memory.budget = BudgetRequest::parse("100%");
  EXPECT_TRUE(make_plan({.options = options, .size = 64}, cluster).proposals.empty());
}

}  // namespace
}  // namespace spillway
