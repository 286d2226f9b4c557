#include "runtime/task.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "core/error.h"

namespace spillway {
namespace {

/// A bright ball per label in noise: what a network must find.
Batch balls(int64_t edge) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  auto axis = at::linspace(-1, 1, edge);
  auto grid = at::meshgrid({axis, axis, axis}, "ij");
  auto radius = (grid[0].square() + grid[1].square() + (grid[2] - 0.2).square()).sqrt();
  auto target = at::stack({radius.lt(0.7), radius.lt(0.5), radius.lt(0.3)}).to(at::kFloat).unsqueeze(0);
  auto input = at::randn({1, 4, edge, edge, edge}, generator) + target.sum(1, true);
  return {input, target};
}

}  // namespace

TEST(TaskTest, TenStepsLowerTheLossOfTheUNet) {
  torch::manual_seed(0);
  auto task = make_task("unet3d", {.unet3d = {.filters = 4}});
  auto batch = balls(32);
  torch::optim::Adam adam(task->module().parameters(), 5e-3);
  double first = 0, last = 0;
  const double metric_before = task->metric(batch);
  for (int step = 0; step < 10; ++step) {
    adam.zero_grad();
    auto loss = task->loss(batch);
    loss.backward();
    adam.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_GE(first, -1);
  EXPECT_LT(last, first - 0.1);
  EXPECT_GT(task->metric(batch), metric_before);
}

TEST(TaskTest, EveryParameterGetsAGradient) {
  auto task = make_task("unet3d", {.unet3d = {.filters = 2}});
  task->loss(balls(32)).backward();
  for (const auto& p : task->module().named_parameters()) EXPECT_TRUE(p.value().grad().defined()) << p.key();
}

TEST(TaskTest, TheMetricLeavesTrainingModeAndGradientsAlone) {
  auto task = make_task("unet3d", {.unet3d = {.filters = 2}});
  auto batch = balls(32);
  const double once = task->metric(batch);
  EXPECT_EQ(task->metric(batch), once);
  EXPECT_TRUE(task->module().is_training());
  EXPECT_FALSE(task->module().parameters()[0].grad().defined());
  EXPECT_EQ(task->metric_name(), "dice");
}

TEST(TaskTest, TheMlpLearnsAFixedBatch) {
  torch::manual_seed(0);
  auto task = make_task("mlp", {.mlp = {.input = 8, .hidden = 32, .layers = 1, .classes = 3}});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(6);
  Batch batch{at::randn({30, 8}, generator), at::arange(30).remainder(3)};
  batch.input.select(1, 0).add_(batch.target, 2);
  torch::optim::SGD sgd(task->module().parameters(), 0.2);
  const double first = task->loss(batch).item<double>();
  for (int step = 0; step < 50; ++step) {
    sgd.zero_grad();
    task->loss(batch).backward();
    sgd.step();
  }
  EXPECT_LT(task->loss(batch).item<double>(), first / 2);
  EXPECT_GT(task->metric(batch), 0.9);
  EXPECT_EQ(task->metric_name(), "accuracy");
}

TEST(TaskTest, TheMlpsLossIsTheMeanCrossEntropy) {
  auto task = make_task("mlp", {.mlp = {.input = 8, .classes = 4}});
  at::NoGradGuard no_grad;
  for (auto& p : task->module().parameters()) p.zero_();
  EXPECT_NEAR(task->loss({at::ones({5, 8}), at::arange(5).remainder(4)}).item<double>(), std::log(4.0), 1e-6);
}

TEST(TaskTest, AnUnknownModelIsRefusedNamingTheKnownOnes) {
  try {
    make_task("resnet9000");
    FAIL();
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("resnet9000"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("unet3d, mlp"), std::string::npos);
  }
  EXPECT_THROW(make_task("mlp", {.mlp = {.hidden = 0}}), BadRequest);
}

}  // namespace spillway
