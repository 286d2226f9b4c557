// Tests of training runs on a CUDA GPU. They are skipped, and counted, where there is no GPU.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "runtime/training/run_context.h"
#include "runtime/training/train.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

class GpuRunTest : public ScratchFolder {
 protected:
  void SetUp() override {
    ScratchFolder::SetUp();
    try {
      (void)open_device("cuda");
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setAllowTF32CuDNN(false);  // its products have 10 bits, and are compared with the host's
  }
  TrainOptions options() const {
    TrainOptions o;
    o.model.name = "mlp";
    o.data.source = "synthetic:16";
    o.data.cases = 10;
    o.data.batch = 2;
    o.steps = 6;
    o.memory.device = "cuda";
    return o;
  }
  static TrainResult run(const TrainOptions& options) {
    TrainListener silent;
    return train(options, {}, silent);
  }
};

TEST_F(GpuRunTest, AResumedRunEqualsAnUninterruptedOne) {
  const TrainResult whole = run(options());
  TrainOptions part = options();
  part.checkpoint.folder = (dir_ / "checkpoints").string();
  part.steps = 3;
  (void)run(part);
  part.steps = 6;
  part.checkpoint.resume = true;
  const TrainResult rest = run(part);
  EXPECT_EQ(rest.resumed_from_step, 3);
  EXPECT_EQ(rest.weights_sha256, whole.weights_sha256);
  EXPECT_EQ(rest.losses.back(), whole.losses.back());
  part.memory.device = "cpu";
  EXPECT_THROW(run(part), BadRequest) << "another generator";
}

TEST_F(GpuRunTest, KfacGivesTheSameBitsUnderABudget) {
  for (const char* model : {"mlp", "unet3d"}) {
    TrainOptions o = options();
    o.model.name = model;
    if (o.model.name == "unet3d") {
      o.data.source = "synthetic:32";
      o.model.filters = 4;
    }
    o.optimizer.kind = OptimizerKind::sgd;
    o.optimizer.lr = 0.05;
    o.kfac.enabled = true;
    o.kfac.preconditioner.factor_interval = o.kfac.preconditioner.inverse_interval = 2;
    const TrainResult unlimited = run(o);
    // Most of what this small network holds is libraries', and the neediest operator needs most of the rest.
    const int64_t libraries = open_device("cuda").library_bytes();
    const int64_t share = libraries + (unlimited.peak_bytes - libraries) * 4 / 5;
    o.memory.budget = BudgetRequest::parse(str(std::max(share, unlimited.floor_bytes + (int64_t{32} << 20))));
    const TrainResult paged = run(o);
    EXPECT_EQ(paged.weights_sha256, unlimited.weights_sha256) << model;
    EXPECT_LE(paged.peak_bytes, paged.budget_bytes) << model;
    o.memory.budget = {};
    o.memory.device = "cpu";
    const TrainResult on_host = run(o);
    // The U-Net drops other elements on the host, whose generator is another.
    const double tolerance = o.model.name == "mlp" ? 0.02 : 0.3;
    EXPECT_NEAR(unlimited.losses[1], on_host.losses[1], tolerance * std::abs(on_host.losses[1])) << model;
    EXPECT_EQ(unlimited.kfac->counters.failed_decompositions, 0) << model;
  }
}

}  // namespace
}  // namespace spillway
