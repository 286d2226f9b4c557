// Tests that the floor is exact: a run trains at the floor, and no run trains one page below it.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <regex>
#include <string>

#include "core/bytes.h"
#include "core/device/cpu_device.h"
#include "core/error.h"
#include "runtime/io/weights_sha256.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "runtime/training/training_run.h"
#include "runtime/training/unlimited_profile.h"
#include "swap/schedule/step_trace.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

constexpr int64_t kPage = 4096;

struct Case {
  const char* name;
  const char* model;
  const char* data;
  int64_t split_bytes;
  bool kfac = false;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

RunContext context_of(const Case& c) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  TrainOptions options;
  options.model.name = c.model;
  options.data.source = c.data;
  options.memory.split_bytes = c.split_bytes;
  options.data.cases = 4;
  options.data.batch = 1;
  if (std::string_view(c.model) == "unet3d") options.model.filters = 4;
  if (std::string_view(c.model) == "bp3d") options.model.filters = 4;
  options.kfac.enabled = c.kfac;
  options.kfac.preconditioner.burn_in = 1;
  options.optimizer.kind = c.kfac ? OptimizerKind::sgd : OptimizerKind::adam;
  return make_context(options, {});
}

struct Trained {
  std::vector<double> losses;
  double metric = 0;
  std::string weights;
  int64_t peak_bytes = 0, need_bytes = 0;
};

Trained train(const RunContext& context, int64_t budget_bytes) {
  TrainingRun run(context, budget_bytes, 1);
  Trained trained;
  trained.metric = run.validate().metric;
  for (int i = 0; i < 4; ++i) trained.losses.push_back(run.step().loss);
  trained.metric += run.validate().metric;
  trained.weights = run.weights_sha256();
  trained.peak_bytes = run.session().stats().peak_bytes;
  trained.need_bytes = run.session().neediest().bytes();
  return trained;
}

/// Runs a backward. LibTorch keeps the gradients that a failed backward had not passed on until the thread's next
/// backward.
void let_go_of_failed_backward() {
  torch::ones({1}).requires_grad_().sum().backward();
}

struct FloorTest : ::testing::TestWithParam<Case> {};

TEST_P(FloorTest, TrainsAtTheFloorAndNotOnePageBelow) {
  const RunContext context = context_of(GetParam());
  const UnlimitedProfile observed = profile_unlimited_step(context);
  const Trained unlimited = train(context, kUnlimitedBytes);
  EXPECT_EQ(unlimited.need_bytes, observed.floor_bytes) << "later steps need what the observed one did";
  const int64_t floor = resolve_budget({BudgetRequest::Kind::bytes, observed.floor_bytes, 0}, observed);
  EXPECT_EQ(floor, observed.floor_bytes);
  const Trained tight = train(context, floor);
  EXPECT_EQ(tight.losses, unlimited.losses);
  EXPECT_EQ(tight.metric, unlimited.metric);
  EXPECT_EQ(tight.weights, unlimited.weights);
  EXPECT_LE(tight.peak_bytes, floor);
  EXPECT_THROW(train(context, floor - kPage), OutOfBudget);
  let_go_of_failed_backward();
  EXPECT_THROW((void)resolve_budget({BudgetRequest::Kind::bytes, floor - kPage, 0}, observed), InfeasibleBudget);
}

INSTANTIATE_TEST_SUITE_P(Models, FloorTest,
                         ::testing::Values(Case{"mlp", "mlp", "synthetic:64", kUnlimitedBytes},
                                           Case{"unet3d", "unet3d", "synthetic:32", kUnlimitedBytes},
                                           Case{"unet3d_in_windows", "unet3d", "synthetic:32", 256 << 10},
                                           Case{"unet3d_kfac", "unet3d", "synthetic:32", kUnlimitedBytes, true},
                                           Case{"bp3d_in_windows", "bp3d", "synthetic:16", 128 << 10}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Returns the words with which the context's budget is refused; empty when it is not.
std::string refusal(RunContext context, const UnlimitedProfile& observed, int64_t budget_bytes) {
  context.options.memory.budget = {BudgetRequest::Kind::bytes, budget_bytes, 0};
  try {
    EXPECT_EQ(resolve_budget_or_name_split(context, observed), budget_bytes);
  } catch (const InfeasibleBudget& error) {
    return error.what();
  }
  return "";
}

TEST(FeasibleSplitTest, ARefusalNamesTheSplitWhoseFloorFitsTheBudget) {
  RunContext context = context_of({"", "unet3d", "synthetic:32", kUnlimitedBytes});
  const UnlimitedProfile whole = profile_unlimited_step(context);
  EXPECT_EQ(refusal(context, whole, whole.floor_bytes), "");
  const int64_t budget = whole.floor_bytes * 6 / 10;
  const std::string message = refusal(context, whole, budget);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(message, found, std::regex("; with --split (\\d+[KM]iB) it is (\\d+) bytes")))
      << message;
  context.options.memory.split_bytes = parse_bytes(found[1].str());
  const UnlimitedProfile split = profile_unlimited_step(context);
  EXPECT_EQ(found[2].str(), std::to_string(split.floor_bytes));
  EXPECT_LE(split.floor_bytes, budget);
  (void)train(context, budget);
}

TEST(FeasibleSplitTest, ARefusalNamesNoSplitWhereNoneHelps) {
  RunContext context = context_of({"", "unet3d", "synthetic:32", kUnlimitedBytes});
  const UnlimitedProfile whole = profile_unlimited_step(context);
  const std::string message = refusal(context, whole, 200 << 10);  // less than the largest weights take
  EXPECT_NE(message, "");
  EXPECT_EQ(message.find("--split"), std::string::npos) << message;
  context.options.checkpoint.resume = true;  // the split size of the first run stays
  EXPECT_EQ(refusal(context, whole, whole.floor_bytes * 6 / 10).find("--split"), std::string::npos);
}

}  // namespace

// Checks a measurement that decomposes matrices up to a side of 1728. They take megabytes, while the model needs
// kilobytes.
TEST(ObservationTest, MeasuringDecompositionsIsNoPartOfAStep) {
  CpuDevice::instance();  // from here on both runs count the memory that the data keeps
  const auto observed = [](kfac::Placement placement) {
    TrainOptions options;
    options.model.name = "mlp";
    options.data.source = "synthetic:16";
    options.optimizer.kind = OptimizerKind::sgd;
    options.kfac.enabled = true;
    options.kfac.preconditioner.placement = placement;
    return profile_unlimited_step(make_context(options, {}));
  };
  const UnlimitedProfile greedy = observed(kfac::Placement::lpt_time), measured = observed(kfac::Placement::measured);
  EXPECT_EQ(measured.floor_bytes, greedy.floor_bytes);
  EXPECT_EQ(measured.peak_bytes, greedy.peak_bytes);
}

}  // namespace spillway
