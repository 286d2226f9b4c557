// Tests that a dry run, whose kernels compute no values, leaves the trace of a real one.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/data/blank_dataset.h"
#include "runtime/training/training_run.h"
#include "runtime/training/unlimited_profile.h"
#include "swap/schedule/step_trace.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway {
using namespace runtime;
using namespace swap;
namespace {

struct Way {
  const char* name;
  const char* model;
  const char* data;
  bool kfac = false;
  int64_t split_bytes = kUnlimitedBytes;
  int64_t batch = 1;
  OptimizerKind optimizer = OptimizerKind::adam;  ///< without K-FAC
  kfac::Method method = kfac::Method::eigen;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

RunContext context_of(const Way& way) {
  TrainOptions options;
  options.model.name = way.model;
  options.data.source = way.data;
  options.memory.split_bytes = way.split_bytes;
  options.data.cases = 4;
  options.data.batch = way.batch;
  const std::string_view model = way.model;
  if (model == "unet3d" || model == "bp3d") options.model.filters = 4;
  // With so few channels oneDNN pads several cases less than one, and the bound of its scratch is far.
  if ((model == "unet3d" || model == "bp3d") && way.batch > 1) options.model.filters = 16;
  if (model == "resnet50") options.model.filters = 8;
  if (model == "bert-base") options.model.layers = 2, options.model.hidden = 64;
  options.kfac.enabled = way.kfac;
  options.kfac.preconditioner.burn_in = 1;
  options.kfac.preconditioner.method = way.method;
  options.optimizer.kind = way.kfac ? OptimizerKind::sgd : way.optimizer;
  if (is_of_matrices(options.optimizer.kind)) options.optimizer.rest = {OptimizerKind::adamw, 1e-3};
  return make_context(options, {});
}

std::vector<StepTrace> traces_of(const RunContext& context) {
  TrainingRun run(context, kUnlimitedBytes, 1);
  run.step();
  run.step();
  run.validate();
  std::vector<StepTrace> all;
  for (const StepTrace* trace : run.session().traces()) all.push_back(*trace);
  return all;
}

std::string describe(const StepTrace& trace, const OperatorRecord& op) {
  std::string text = str(op.name, ", leased ", op.leased_bytes, ", unpaged ", op.unpaged_bytes, ", replayable ",
                         op.replayable, ", born");
  for (int32_t s : op.births) text += str(" ", trace.slots[s].bytes, " ", name(trace.slots[s].category));
  return text;
}

/// True for operators whose scratch a dry run bounds from above.
bool is_bounded(std::string_view name) {
  return name == "aten::convolution_backward" || name == "aten::linalg_qr";
}

/// Expects `dry` to be at least `real`, and at most 5 % more.
void expect_slightly_above(int64_t dry, int64_t real) {
  EXPECT_GE(dry, real);
  EXPECT_LE(dry, real + real / 20);
}

void expect_the_same_operators(const StepTrace& dry, const StepTrace& real) {
  ASSERT_EQ(dry.operators.size(), real.operators.size());
  for (size_t i = 0; i < real.operators.size(); ++i) {
    const OperatorRecord &d = dry.operators[i], &r = real.operators[i];
    ASSERT_EQ(describe(dry, d), describe(real, r)) << "operator " << i;
    if (is_bounded(r.name))
      ASSERT_GE(d.own_bytes, r.own_bytes) << r.name << ", operator " << i;
    else
      ASSERT_EQ(d.own_bytes, r.own_bytes) << r.name << ", operator " << i;
  }
}

struct DryRunTest : ::testing::TestWithParam<Way> {};

TEST_P(DryRunTest, LeavesTheTraceOfARealRun) {
  RunContext context = context_of(GetParam());
  const auto real = traces_of(context);
  context.kernels = make_shape_kernels();
  const auto dry = traces_of(context);
  ASSERT_EQ(dry.size(), real.size());
  for (size_t t = 0; t < real.size(); ++t) {
    SCOPED_TRACE(real[t].kind);
    EXPECT_EQ(dry[t].kind, real[t].kind);
    expect_the_same_operators(dry[t], real[t]);
    expect_slightly_above(dry[t].unconstrained_peak_bytes(), real[t].unconstrained_peak_bytes());
    expect_slightly_above(dry[t].floor_bytes(), real[t].floor_bytes());
  }
}

TEST(DryContextTest, BlankVolumesHaveTheSizesOfRealOnes) {
  for (const char* model : {"unet3d", "bp3d"}) {
    const auto real = open_dataset(model, "synthetic:32", {.cases = 3}),
               blank = open_blank_dataset(model, "synthetic:32", {.cases = 3});
    EXPECT_EQ(blank->size(), real->size());
    EXPECT_EQ(blank->case_bytes(), real->case_bytes());
    const Batch a = real->at(1), b = blank->at(1);
    EXPECT_EQ(b.input.sizes(), a.input.sizes()) << model;
    EXPECT_EQ(b.target.sizes(), a.target.sizes()) << model;
    EXPECT_EQ(b.input.scalar_type(), a.input.scalar_type()) << model;
    EXPECT_EQ(b.target.scalar_type(), a.target.scalar_type()) << model;
  }
  EXPECT_THROW((void)open_blank_dataset("unet3d", "synthetic:30"), BadRequest);
}

TEST(DryContextTest, NeedsAreThoseOfARealStep) {
  const RunContext real = context_of({"", "unet3d", "synthetic:32"});
  const UnlimitedProfile observed = profile_unlimited_step(real);
  const UnlimitedProfile dry = profile_unlimited_step(make_dry_context(real.options));
  expect_slightly_above(dry.peak_bytes, observed.peak_bytes);
  expect_slightly_above(dry.floor_bytes, observed.floor_bytes);
  EXPECT_EQ(dry.floor_operator, observed.floor_operator);
}

int64_t resident_kibibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;  // the largest so far
}

TEST(DryContextTest, ALargeVolumeNeedsBytesAndTakesNone) {
  TrainOptions options = context_of({"", "unet3d", "synthetic:32"}).options;
  options.data.source = "synthetic:256";
  const int64_t before = resident_kibibytes();
  const UnlimitedProfile needs = profile_unlimited_step(make_dry_context(options));
  EXPECT_GT(needs.peak_bytes, int64_t{7} << 30);
  EXPECT_LT(resident_kibibytes() - before, 1 << 20) << "each tensor touches a huge page at most";
}

TEST(DryContextTest, RefusesWhatNeedsARealStep) {
  TrainOptions options = context_of({"", "unet3d", "synthetic:32", true}).options;
  options.kfac.time_share = 0.2;
  EXPECT_THROW((void)make_dry_context(options), BadRequest);
  options.kfac.time_share.reset();
  options.data.batch = 64;
  EXPECT_THROW((void)make_dry_context(options), BadRequest) << "there are 4 cases";
  options.data.batch = 1;
  options.memory.device = "cuda";
  EXPECT_THROW((void)make_dry_context(options), BadRequest);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DryRunTest,
    ::testing::Values(
        Way{"mlp", "mlp", "synthetic:64"}, Way{"unet3d", "unet3d", "synthetic:32"},
        Way{"unet3d_in_windows", "unet3d", "synthetic:32", false, 256 << 10},
        Way{"unet3d_kfac", "unet3d", "synthetic:32", true}, Way{"bp3d", "bp3d", "synthetic:16"},
        Way{"bp3d_kfac", "bp3d", "synthetic:16", true}, Way{"bp3d_32", "bp3d", "synthetic:32", true},
        Way{"unet3d_64", "unet3d", "synthetic:64"}, Way{"unet3d_64_kfac", "unet3d", "synthetic:64", true},
        Way{"resnet50", "resnet50", "synthetic:64"}, Way{"resnet50_224", "resnet50", "synthetic:224"},
        Way{"resnet50_kfac", "resnet50", "synthetic:64", true}, Way{"bert", "bert-base", "synthetic:16"},
        Way{"bert_kfac", "bert-base", "synthetic:32", true},
        Way{"autoencoder_kfac", "autoencoder", "synthetic:28", true},
        Way{"unet3d_batch", "unet3d", "synthetic:32", true, kUnlimitedBytes, 2},
        Way{"bp3d_batch", "bp3d", "synthetic:16", true, kUnlimitedBytes, 2},
        Way{"resnet50_batch", "resnet50", "synthetic:64", true, kUnlimitedBytes, 3},
        Way{"bert_batch", "bert-base", "synthetic:16", true, kUnlimitedBytes, 3},
        Way{"lamb", "mlp", "synthetic:64", false, kUnlimitedBytes, 1, OptimizerKind::lamb},
        Way{"muon", "mlp", "synthetic:64", false, kUnlimitedBytes, 1, OptimizerKind::muon},
        Way{"soap", "mlp", "synthetic:64", false, kUnlimitedBytes, 1, OptimizerKind::soap},
        Way{"kfac_pi", "mlp", "synthetic:64", true, kUnlimitedBytes, 1, OptimizerKind::sgd, kfac::Method::pi},
        Way{"kfac_plain", "mlp", "synthetic:64", true, kUnlimitedBytes, 1, OptimizerKind::sgd, kfac::Method::plain}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace spillway
