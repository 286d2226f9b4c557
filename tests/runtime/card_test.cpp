// Training runs on a CUDA card. Skipped, and counted, where there is none.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "core/device.h"
#include "core/error.h"
#include "runtime/train.h"
#include "tests/runtime/files.h"

namespace spillway {
namespace {

class CardRunTest : public ScratchFolder {
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
  }
  TrainOptions options() const {
    TrainOptions o;
    o.model = "mlp";
    o.data = "synthetic:16";
    o.cases = 10;
    o.batch = 2;
    o.steps = 6;
    o.device = "cuda";
    return o;
  }
  static TrainResult run(const TrainOptions& options) {
    TrainListener silent;
    return train(make_context(options, {}), silent);
  }
};

TEST_F(CardRunTest, AResumedRunEqualsAnUninterruptedOne) {
  const TrainResult whole = run(options());
  TrainOptions part = options();
  part.checkpoint = (dir_ / "checkpoints").string();
  part.steps = 3;
  (void)run(part);
  part.steps = 6;
  part.resume = true;
  const TrainResult rest = run(part);
  EXPECT_EQ(rest.resumed_from_step, 3);
  EXPECT_EQ(rest.weights_sha256, whole.weights_sha256);
  EXPECT_EQ(rest.losses.back(), whole.losses.back());
  part.device = "cpu";
  EXPECT_THROW(run(part), BadRequest) << "another generator";
}

}  // namespace
}  // namespace spillway
