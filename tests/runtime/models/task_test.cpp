#include "runtime/models/task.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "core/error.h"

namespace spillway {
using namespace runtime;
namespace {

/// Returns a bright ball per label in noise, which a network must find.
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

TEST(TaskTest, TheAutoencoderSqueezesVectorsThroughItsCode) {
  torch::manual_seed(0);
  auto task = make_task("autoencoder", {.autoencoder = {.input = 12, .hidden = 16, .layers = 2, .code = 2}});
  EXPECT_EQ(task->module().named_parameters()["linear0.weight"].sizes(), at::IntArrayRef({16, 12}));
  EXPECT_EQ(task->module().named_parameters()["linear2.weight"].sizes(), at::IntArrayRef({2, 8}));
  EXPECT_EQ(task->module().named_parameters()["linear5.weight"].sizes(), at::IntArrayRef({12, 16}));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(6);
  const Batch batch{at::rand({2, 12}, generator).gt(0.5).to(at::kFloat).repeat({8, 1}), at::empty({16, 0})};
  torch::optim::Adam adam(task->module().parameters(), 0.01);
  EXPECT_LT(task->metric(batch), 0.5);
  for (int step = 0; step < 200; ++step) {
    adam.zero_grad();
    task->loss(batch).backward();
    adam.step();
  }
  EXPECT_GT(task->metric(batch), 0.95);
  EXPECT_EQ(task->metric_name(), "explained_variance");
  EXPECT_THROW(make_task("autoencoder", {.autoencoder = {.layers = 0}}), BadRequest);
}

/// Expects that a network learns one batch by heart.
void expect_learning(Task& task, const Batch& batch, int64_t steps, double lr) {
  torch::optim::Adam adam(task.module().parameters(), lr);
  const double first = task.loss(batch).item<double>();
  for (int64_t step = 0; step < steps; ++step) {
    adam.zero_grad();
    task.loss(batch).backward();
    adam.step();
  }
  EXPECT_LT(task.loss(batch).item<double>(), first / 2);
  EXPECT_EQ(task.metric_name(), "accuracy");
}

TEST(TaskTest, Bp3dLearnsAFixedBatch) {
  torch::manual_seed(0);
  auto task = make_task("bp3d", {.bp3d = {.filters = 8}});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  Batch batch{at::randn({2, 1, 8, 8, 8}, generator), at::zeros({2, 8, 8, 8}, at::kLong)};
  batch.target.narrow(1, 3, 5).fill_(2);
  batch.input.narrow(2, 3, 5).add_(4);
  expect_learning(*task, batch, 40, 1e-2);
  EXPECT_GT(task->metric(batch), 0.8);
}

TEST(TaskTest, ResNet50LearnsAFixedBatch) {
  torch::manual_seed(0);
  auto task = make_task("resnet50", {.resnet50 = {.classes = 4, .filters = 4}});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(8);
  Batch batch{at::randn({8, 3, 40, 40}, generator), at::arange(8).remainder(4)};
  batch.input.select(1, 0).add_(batch.target.view({8, 1, 1}), 2);
  expect_learning(*task, batch, 15, 1e-2);
}

TEST(TaskTest, BertLearnsAFixedBatch) {
  torch::manual_seed(0);
  auto task =
      make_task("bert-base", {.bert = {.layers = 1, .hidden = 16, .heads = 2, .intermediate = 32, .vocabulary = 20}});
  auto generator = at::make_generator<at::CPUGeneratorImpl>(9);
  Batch batch{at::randint(20, {4, 6}, generator, at::kLong), at::randint(6, {4, 2, 2}, generator, at::kLong)};
  expect_learning(*task, batch, 60, 1e-2);
  EXPECT_GT(task->metric(batch), 0.8);
}

TEST(TaskTest, Bp3dWeighsItsClasses) {
  Batch batch{at::zeros({1, 1, 4, 4, 4}), at::zeros({1, 4, 4, 4}, at::kLong)};
  batch.target.narrow(1, 0, 1).fill_(2);
  auto task = make_task("bp3d", {.bp3d = {.filters = 1}, .bp3d_class_weights = {0.5, 1, 3}});
  at::NoGradGuard no_grad;
  for (auto& p : task->module().parameters()) p.zero_();
  // Every class is equally likely, so −log p = log 3. Three quarters of the voxels weigh 0.5, and one quarter weighs 3.
  EXPECT_NEAR(task->loss(batch).item<double>(), (0.75 * 0.5 + 0.25 * 3) * std::log(3.0), 1e-6);
  EXPECT_THROW(make_task("bp3d", {.bp3d_class_weights = {1, 2}}), BadRequest);
  EXPECT_EQ(task->module().buffers().size(), 0u);
}

TEST(TaskTest, EveryParameterOfEveryModelGetsAGradient) {
  auto check = [](const char* model, const TaskOptions& options, const Batch& batch) {
    auto task = make_task(model, options);
    task->loss(batch).backward();
    for (const auto& p : task->module().named_parameters())
      EXPECT_TRUE(p.value().grad().defined()) << model << " " << p.key();
  };
  check("bp3d", {.bp3d = {.filters = 2}}, {at::rand({1, 1, 4, 4, 4}), at::ones({1, 4, 4, 4}, at::kLong)});
  check("resnet50", {.resnet50 = {.filters = 2}}, {at::rand({2, 3, 33, 33}), at::ones({2}, at::kLong)});
  check("autoencoder", {.autoencoder = {.input = 16, .hidden = 8, .layers = 2, .code = 2}},
        {at::rand({3, 16}), at::empty({3, 0})});
  check("bert-base", {.bert = {.layers = 1, .hidden = 8, .heads = 2, .vocabulary = 9}},
        {at::ones({2, 5}, at::kLong), at::ones({2, 2, 3}, at::kLong)});
}

TEST(TaskTest, AnUnknownModelIsRefusedNamingTheKnownOnes) {
  try {
    make_task("resnet9000");
    FAIL();
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("resnet9000"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("unet3d, bp3d, resnet50, bert-base, mlp, autoencoder"), std::string::npos);
  }
  EXPECT_THROW(make_task("mlp", {.mlp = {.hidden = 0}}), BadRequest);
}

}  // namespace spillway
