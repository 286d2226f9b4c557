// Tests of plans by dry runs, and of the changes of bits that they propose.
#include "runtime/dry_runs/make_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/memory/device_memory.h"
#include "runtime/dry_runs/changes.h"
#include "runtime/dry_runs/dry_steps.h"
#include "runtime/dry_runs/make_planner.h"
#include "swap/gate/session_options.h"
#include "tests/runtime/dry_runs/small_options.h"

namespace spillway {
using namespace runtime;
namespace {

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
  DeviceProfile slow = small_gpu();  // no step hides its copies
  slow.copies.out_bytes_per_second = slow.copies.in_bytes_per_second = 1e8;
  PlannedCluster cluster(slow, ClusterShape::parse("1", 1), nullptr);
  PlanRequest request{
      .options = options, .size = 32, .budgets = {BudgetRequest::parse("90%"), BudgetRequest::parse("1%")}};
  request.sizes = {{32, options}};
  request.largest_batch = true;
  const PlanReport report = make_plan(request, cluster);
  ASSERT_TRUE(report.plan.is_feasible());
  EXPECT_GT(report.plan.best().forecast.seconds, report.unlimited.best().forecast.seconds);
  EXPECT_LE(report.plan.best().forecast.peak_bytes, report.plan.budget_bytes);
  ASSERT_EQ(report.frontier.size(), 1);
  const auto& points = report.frontier[0].points;
  EXPECT_TRUE(points[0].plan.is_feasible());
  EXPECT_GE(points[0].largest_batch, 1);
  EXPECT_FALSE(points[1].plan.is_feasible());
  EXPECT_EQ(points[1].largest_batch, 0);
}

TEST(MakePlanTest, AShareIsOfTensorsAndLibrariesComeOnTop) {
  PlannedCluster gpu(built_in_profile("h100"), ClusterShape::parse("1", 1), nullptr);
  const int64_t libraries = gpu.profile().library_bytes;
  EXPECT_GT(libraries, 0);
  EXPECT_EQ(budget_bytes(BudgetRequest::parse("50%"), libraries + 1000, gpu), libraries + 500);
  EXPECT_EQ(budget_bytes(BudgetRequest::parse("700"), libraries + 1000, gpu), 700);
  EXPECT_EQ(budget_bytes({}, libraries + 1000, gpu), kUnlimitedBytes);
  TrainOptions options = small_options();
  options.kfac.enabled = false;
  options.memory.budget = BudgetRequest::parse("90%");
  const PlanReport report = make_plan({.options = options, .size = 32}, gpu);
  EXPECT_TRUE(report.plan.is_feasible()) << "libraries alone are more than 90 % of the peak";
}

TEST(MakePlanTest, SchedulesAreWeighedWithOptionsThatGoWithLateRefreshesAlone) {
  TrainOptions options = small_options();
  options.optimizer.accumulate = 2;
  options.pipeline.ranks = 2;
  options.pipeline.schedule = PipelineSchedule::automatic;
  options.kfac.preconditioner.factor_interval = options.kfac.preconditioner.inverse_interval = 10;
  options.kfac.preconditioner.staleness = 3;
  options.kfac.preconditioner.eigen_rank = kfac::EigenRank::of(4);
  PlannedCluster cluster = cluster_of("2", 2);
  EXPECT_GE(make_planner(options, cluster).plan(kUnlimitedBytes).weighed.size(), 6);
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

/// On the CPU K-FAC sums a convolution's factors by shifts of its input, in more and other operators.
TEST(MakePlanTest, FactorsOfAGpuAreSummedOverPatches) {
  TrainOptions options = small_options();
  options.model.filters = 16;
  options.kfac.preconditioner.factor_samples = kfac::FactorSamples::exact();
  DeviceProfile cores = small_gpu();
  cores.copies.compute_slowdown = 0.5;
  const auto operators_of = [&](const DeviceProfile& profile, bool shifted_products) {
    options.kfac.preconditioner.shifted_products = shifted_products;
    PlannedCluster cluster(profile, ClusterShape::parse("", 1), nullptr);
    size_t operators = 0;
    const std::vector<RankSteps> steps = cluster.steps(options, preconditioned_layers(options), {});
    for (const KindOfStep& kind : steps.front().kinds) operators += kind.trace.operators.size();
    return operators;
  };
  EXPECT_EQ(operators_of(small_gpu(), true), operators_of(small_gpu(), false));
  EXPECT_NE(operators_of(small_gpu(), true), operators_of(cores, true));
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
