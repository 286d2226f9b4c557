#include "runtime/models/unet3d.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <iostream>
#include <string>

#include "core/error.h"
#include "tests/runtime/models/small_models.h"

namespace spillway {
using namespace runtime;
TEST(UNet3dTest, HasThe8Point27MillionParametersOfIsensee2017) {
  UNet3d net;
  const int64_t count = parameter_count(*net);
  std::cout << "UNet3d: " << count << " parameters, published 8.27 M\n";
  EXPECT_NEAR(static_cast<double>(count), 8.27e6, 0.02 * 8.27e6);
  // The count is Σ over blocks of k³·in·out + 3·out (bias, γ, β), computed by hand from the paper's widths.
  EXPECT_EQ(count, 8269561);
}

TEST(UNet3dTest, ReturnsProbabilitiesInTheInputsShape) {
  UNet3d net(UNet3dOptions{.in_channels = 2, .classes = 3, .filters = 2});
  auto y = net->forward(at::rand({2, 2, 16, 32, 48}));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 16, 32, 48}));
  EXPECT_GT(y.min().item<double>(), 0);
  EXPECT_LT(y.max().item<double>(), 1);
}

TEST(UNet3dTest, WorksAtEveryDepth) {
  for (int64_t depth = 2; depth <= 4; ++depth) {
    UNet3d net(UNet3dOptions{.in_channels = 1, .classes = 1, .filters = 2, .depth = depth});
    EXPECT_EQ(net->forward(at::rand({1, 1, 8, 8, 8})).sizes(), at::IntArrayRef({1, 1, 8, 8, 8}));
  }
}

TEST(UNet3dTest, RefusesEdgesThatDoNotHalveEvenly) {
  UNet3d net(UNet3dOptions{.filters = 2});
  auto message = message_of([&] { net->forward(at::rand({1, 4, 32, 40, 32})); });
  EXPECT_NE(message.find("multiples of 16"), std::string::npos) << message;
  EXPECT_NE(message.find("40"), std::string::npos) << message;
  EXPECT_THROW(net->forward(at::rand({1, 3, 32, 32, 32})), c10::Error);
}

TEST(UNet3dTest, OptionsNameTheBadField) {
  auto message = message_of([] { UNet3d net(UNet3dOptions{.dropout = 1.0}); });
  EXPECT_NE(message.find("dropout"), std::string::npos) << message;
  EXPECT_THROW(UNet3dOptions{.filters = 0}.validate(), BadRequest);
  EXPECT_THROW(UNet3dOptions{.depth = 1}.validate(), BadRequest);
}

TEST(UNet3dTest, ABlockIsConvolutionInstanceNormAndLeakyRelu) {
  for (int64_t batch : {1, 3}) {
    ConvBlock block(ConvBlockImpl::Options{.in = 2, .out = 5});
    auto named = block->named_parameters();
    {
      at::NoGradGuard no_grad;
      named["norm.weight"].uniform_(0.5, 2);
      named["norm.bias"].uniform_(-1, 1);
    }
    auto x = at::randn({batch, 2, 4, 6, 8});
    auto expected =
        at::leaky_relu(at::instance_norm(at::conv3d(x, named["conv.weight"], named["conv.bias"], 1, 1),
                                         named["norm.weight"], named["norm.bias"], {}, {}, true, 0, 1e-5, false),
                       0.01);
    EXPECT_TRUE(at::allclose(block->forward(x), expected, 1e-5, 1e-6)) << "batch " << batch;
  }
}

TEST(UNet3dTest, DropoutDropsWholeChannelsAndScalesTheOthersInTrainingOnly) {
  torch::manual_seed(1);
  ConvBlock block(ConvBlockImpl::Options{.in = 1, .out = 64, .dropout = 0.5});
  auto x = at::randn({2, 1, 4, 4, 4});
  auto dropped = block->forward(x).abs().sum({2, 3, 4});
  block->eval();
  auto whole = block->forward(x).abs().sum({2, 3, 4});
  auto ratio = dropped / whole;
  auto zeros = ratio.eq(0), doubled = (ratio - 2).abs().lt(1e-4);
  EXPECT_TRUE(zeros.logical_or(doubled).all().item<bool>());
  EXPECT_GT(zeros.sum().item<int64_t>(), 32);
  EXPECT_GT(doubled.sum().item<int64_t>(), 32);
  EXPECT_FALSE(at::equal(zeros[0], zeros[1]));
}

}  // namespace spillway
