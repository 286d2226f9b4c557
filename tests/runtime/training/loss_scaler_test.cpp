#include "runtime/training/loss_scaler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"

namespace spillway {
using namespace runtime;
namespace {

std::vector<at::Tensor> gradients(float first) {
  return {at::tensor({first, 2.f, -3.f}), at::full({2, 2}, 0.75f)};
}

TEST(LossScalerTest, DividesByTheScaleWithoutRounding) {
  LossScaler scaler({.initial = 1024}, at::kCPU);
  const auto scaled = gradients(1e-30f);
  for (const auto& gradient : scaled) gradient.mul_(1024);
  EXPECT_TRUE(scaler.unscale(scaled));
  EXPECT_TRUE(scaled[0].equal(gradients(1e-30f)[0]));
  EXPECT_TRUE(scaled[1].equal(gradients(1e-30f)[1]));
  EXPECT_EQ(scaler.skipped(), 0);
}

TEST(LossScalerTest, HalvesWhereAnyGradientIsNotFiniteAndDoublesAfterItsInterval) {
  LossScaler scaler({.initial = 8, .growth_interval = 3}, at::kCPU);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(scaler.unscale(gradients(bad)));
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_EQ(scaler.skipped(), 2);
  for (double expected : {2.0, 2.0, 4.0, 4.0}) {
    EXPECT_TRUE(scaler.unscale(gradients(1)));
    EXPECT_EQ(scaler.scale(), expected);
  }
  EXPECT_FALSE(scaler.unscale(gradients(std::numeric_limits<float>::infinity())));
  for (double expected : {2.0, 2.0, 4.0}) {
    EXPECT_TRUE(scaler.unscale(gradients(1))) << "an overflow starts the count again";
    EXPECT_EQ(scaler.scale(), expected);
  }
}

TEST(LossScalerTest, GivesUpWhereNoScaleHelps) {
  LossScaler scaler({.initial = 1}, at::kCPU);
  const auto bad = gradients(std::numeric_limits<float>::quiet_NaN());
  for (int i = 0; i < 24; ++i) EXPECT_FALSE(scaler.unscale(bad));
  EXPECT_THROW((void)scaler.unscale(bad), std::runtime_error);
}

TEST(LossScalerTest, GoesOnFromWhatItPacked) {
  LossScaler first({.initial = 64, .growth_interval = 2}, at::kCPU), second({.growth_interval = 2}, at::kCPU);
  EXPECT_FALSE(first.unscale(gradients(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(first.unscale(gradients(1)));
  second.unpack(first.pack());
  EXPECT_EQ(second.skipped(), 1);
  EXPECT_TRUE(second.unscale(gradients(1)));
  EXPECT_EQ(second.scale(), 64) << "the second good step in a row";
  EXPECT_THROW(second.unpack(at::zeros({2}, at::kDouble)), BadRequest);
}

TEST(LossScalerTest, NamesWhatIsAllowed) {
  for (double bad : {0.0, -1.0, 0x1p128, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(LossScaling({.initial = bad}).validate(), BadRequest) << bad;
  EXPECT_THROW(LossScaling({.growth_interval = 0}).validate(), BadRequest);
}

}  // namespace
}  // namespace spillway
