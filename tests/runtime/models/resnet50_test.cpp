#include "runtime/models/resnet50.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>

#include "core/error.h"
#include "tests/runtime/models/small_models.h"

namespace spillway {
using namespace runtime;

TEST(ResNet50Test, HasTorchvisionsParametersAndNames) {
  ResNet50 net;
  EXPECT_EQ(parameter_count(*net), 25'557'032);
  EXPECT_EQ(net->parameters().size(), 161u);
  auto named = net->named_parameters();
  EXPECT_EQ(named["conv1.weight"].sizes(), at::IntArrayRef({64, 3, 7, 7}));
  EXPECT_EQ(named["layer1.0.downsample.0.weight"].sizes(), at::IntArrayRef({256, 64, 1, 1}));
  EXPECT_EQ(named["layer3.5.conv2.weight"].sizes(), at::IntArrayRef({256, 256, 3, 3}));
  EXPECT_EQ(named["layer4.2.bn3.bias"].sizes(), at::IntArrayRef({2048}));
  EXPECT_EQ(named["fc.weight"].sizes(), at::IntArrayRef({1000, 2048}));
  EXPECT_EQ(named.find("layer2.1.downsample.0.weight"), nullptr);
  EXPECT_EQ(net->named_buffers()["layer2.0.bn2.running_mean"].sizes(), at::IntArrayRef({128}));
  EXPECT_EQ(net->buffers().size(), 3u * 53);
}

TEST(ResNet50Test, HalvesFiveTimesAndScoresTheClasses) {
  ResNet50 net(ResNet50Options{.classes = 7, .filters = 4});
  EXPECT_EQ(net->forward(at::rand({2, 3, 64, 40})).sizes(), at::IntArrayRef({2, 7}));
  EXPECT_EQ(net->forward(at::rand({1, 3, 33, 33})).sizes(), at::IntArrayRef({1, 7}));
}

TEST(ResNet50Test, ABottleneckIsThreeConvolutionsBesideAShortcut) {
  torch::manual_seed(3);
  Bottleneck block(8, 4, 2);
  auto p = block->named_parameters();
  auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::batch_norm(x, p[name + ".weight"], p[name + ".bias"], {}, {}, true, 0, 1e-5, false);
  };
  auto x = at::randn({3, 8, 6, 6});
  auto y = norm(at::conv2d(x, p["conv1.weight"]), "bn1").relu();
  y = norm(at::conv2d(y, p["conv2.weight"], {}, 2, 1), "bn2").relu();
  y = norm(at::conv2d(y, p["conv3.weight"]), "bn3");
  auto shortcut = norm(at::conv2d(x, p["downsample.0.weight"], {}, 2), "downsample.1");
  EXPECT_TRUE(at::allclose(block->forward(x), (y + shortcut).relu(), 1e-4, 1e-5));
  Bottleneck plain(16, 4, 1);
  EXPECT_EQ(plain->named_parameters().find("downsample.0.weight"), nullptr);
}

TEST(ResNet50Test, DrawsConvolutionsForTheirFanOut) {
  torch::manual_seed(4);
  ResNet50 net;
  const at::Tensor weight = net->named_parameters()["layer3.0.conv2.weight"];
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (256 * 9)), 3e-4);
  EXPECT_NEAR(weight.mean().item<double>(), 0, 2e-4);
}

TEST(ResNet50Test, TrainingUpdatesTheRunningStatisticsAndEvaluationUsesThem) {
  ResNet50 net(ResNet50Options{.classes = 3, .filters = 2});
  auto x = at::randn({4, 3, 64, 64});
  net->forward(x);
  EXPECT_EQ(net->named_buffers()["bn1.num_batches_tracked"].item<int64_t>(), 1);
  EXPECT_GT(net->named_buffers()["bn1.running_mean"].abs().sum().item<double>(), 0);
  net->eval();
  auto once = net->forward(x);
  EXPECT_TRUE(at::equal(once, net->forward(x)));
  EXPECT_EQ(net->named_buffers()["bn1.num_batches_tracked"].item<int64_t>(), 1);
}

TEST(ResNet50Test, RefusesBadInputAndOptions) {
  ResNet50 net(ResNet50Options{.filters = 2});
  EXPECT_NE(message_of([&] { net->forward(at::rand({1, 1, 64, 64})); }).find("[B, 3, H, W]"), std::string::npos);
  EXPECT_NE(message_of([] { ResNet50Options{.classes = 1}.validate(); }).find("classes"), std::string::npos);
  EXPECT_THROW(ResNet50Options{.filters = 0}.validate(), BadRequest);
}

}  // namespace spillway
