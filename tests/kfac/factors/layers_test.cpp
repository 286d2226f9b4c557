#include "kfac/factors/layers.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

std::string reason(const FoundLayers& found, const std::string& name) {
  for (const auto& item : found.left_alone)
    if (item.name == name) return item.reason;
  return {};
}

}  // namespace

TEST(LayersTest, FindsLinearAndConvolutionsOfEveryDimensionInOrder) {
  nn::Sequential model(nn::Conv1d(nn::Conv1dOptions(4, 6, 3).groups(2)), nn::Conv2d(2, 3, 3),
                       nn::Conv3d(nn::Conv3dOptions(2, 3, {1, 2, 3}).bias(false)), nn::Linear(5, 7));
  const auto layers = find_layers(*model, {}).layers;
  ASSERT_EQ(layers.size(), 4u);
  EXPECT_EQ(layers[0].shape.kind, LayerKind::conv1d);
  EXPECT_EQ(layers[0].shape.in, 4);
  EXPECT_EQ(layers[0].shape.groups, 2);
  EXPECT_EQ(layers[1].shape.kind, LayerKind::conv2d);
  EXPECT_EQ(layers[2].shape.kind, LayerKind::conv3d);
  EXPECT_EQ(layers[2].shape.kernel, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_FALSE(layers[2].shape.bias);
  EXPECT_EQ(layers[3].shape.kind, LayerKind::linear);
  EXPECT_EQ(layers[3].shape.name, "3");
  EXPECT_EQ(layers[3].shape.out, 7);
}

TEST(LayersTest, ListsWhatItLeavesAloneAndWhy) {
  nn::Sequential model(nn::Linear(3, 3), nn::ConvTranspose3d(2, 2, 3), nn::Embedding(4, 2), nn::BatchNorm2d(3),
                       nn::ReLU(), nn::Linear(3, 50), nn::Linear(4, 4));
  model->ptr(6)->parameters()[0].set_requires_grad(false);
  const auto found = find_layers(*model, {.max_linear_dim = 40});
  EXPECT_EQ(found.layers.size(), 1u);
  EXPECT_EQ(found.left_alone.size(), 5u);
  EXPECT_NE(reason(found, "1").find("not supported"), std::string::npos);
  EXPECT_NE(reason(found, "2").find("not supported"), std::string::npos);
  EXPECT_NE(reason(found, "5").find("max_linear_dim 40"), std::string::npos);
  EXPECT_NE(reason(found, "6").find("frozen"), std::string::npos);
}

TEST(LayersTest, SkipsNamesThatMatch) {
  struct Model : nn::Module {
    Model() {
      register_module("body", nn::Sequential(nn::Linear(2, 2), nn::Linear(2, 2)));
      register_module("head", nn::Linear(2, 2));
    }
  };
  const auto found = find_layers(Model(), {.skip = {"^head$", "body\\.1"}});
  ASSERT_EQ(found.layers.size(), 1u);
  EXPECT_EQ(found.layers[0].shape.name, "body.0");
  EXPECT_EQ(reason(found, "head"), "skipped by name");
}

TEST(LayersTest, CountsASharedWeightOnce) {
  nn::Linear shared(2, 2);
  nn::Sequential model(shared, nn::ReLU(), shared);
  EXPECT_EQ(find_layers(*model, {}).layers.size(), 1u);
}

TEST(LayersTest, LeavesBiasesThatDoNotGoWithASharedWeightAlone) {
  nn::Linear first(4, 4), second(4, 4), third(nn::LinearOptions(4, 4).bias(false));
  second->weight = third->weight = first->weight;
  for (const nn::Sequential& model : {nn::Sequential(first, second), nn::Sequential(first, third),
                                      nn::Sequential(third, first), nn::Sequential(first, second, first)}) {
    const auto found = find_layers(*model, {});
    ASSERT_EQ(found.layers.size(), 1u);
    EXPECT_EQ(found.layers[0].shape.name, "0");
    EXPECT_FALSE(found.layers[0].shape.bias);
    EXPECT_FALSE(found.layers[0].bias.defined());
    EXPECT_EQ(found.layers[0].shape.factors()[0].side, 4);
  }
}

TEST(LayersTest, TreatsAFrozenBiasAsNone) {
  nn::Linear linear(2, 2);
  linear->bias.set_requires_grad(false);
  EXPECT_FALSE(find_layers(*linear, {}).layers.at(0).shape.bias);
}

TEST(LayersTest, PutsLongLinearLayersIntoBlocksWhereAskedTo) {
  nn::Sequential model(nn::Linear(30, 100), nn::Linear(80, 7));
  const auto found = find_layers(*model, {.max_linear_dim = 40, .block_linear = true});
  ASSERT_EQ(found.layers.size(), 2u);
  const auto &head = found.layers[0].shape, &wide = found.layers[1].shape;
  EXPECT_EQ(head.input_blocks, 1);
  EXPECT_EQ(head.output_blocks, 4) << "100 into 3 does not go";
  EXPECT_FALSE(head.bias_apart());
  EXPECT_EQ(head.factors()[0].side, 31);
  EXPECT_EQ(head.factors()[1].side, 25);
  EXPECT_EQ(head.factors()[1].count, 4);
  EXPECT_EQ(wide.input_blocks, 2);
  EXPECT_TRUE(wide.bias_apart());
  EXPECT_EQ(wide.factors()[0].side, 40);
}

TEST(LayersTest, KeepsTheSidesOfConvolutionsInBlocksToTheLimit) {
  nn::Sequential model(nn::Conv3d(8, 200, 3), nn::Conv3d(nn::Conv3dOptions(16, 6, 3).groups(2)), nn::Conv3d(7, 3, 3),
                       nn::Linear(300, 3));
  const auto layers = find_layers(*model, {.conv_factors = ConvFactors::block, .max_factor_dim = 120}).layers;
  EXPECT_EQ(layers[0].shape.input_blocks, 2);
  EXPECT_EQ(layers[0].shape.output_blocks, 2);
  EXPECT_EQ(layers[1].shape.factors()[0].side, 108);
  EXPECT_EQ(layers[1].shape.factors()[0].count, 4) << "two blocks in each of two groups";
  EXPECT_EQ(layers[2].shape.factors()[0].side, 27) << "7 channels divide into one each";
  EXPECT_EQ(layers[3].shape.input_blocks, 1) << "Linear has a limit of its own";
}

TEST(LayersTest, GoesSeparableWhereTheSideExceedsTheLimit) {
  nn::Sequential model(nn::Conv3d(2, 3, 3), nn::Conv3d(8, 3, 3), nn::Conv3d(8, 3, 1));
  const auto layers = find_layers(*model, {.max_factor_dim = 100}).layers;
  EXPECT_FALSE(layers[0].shape.separable);
  EXPECT_TRUE(layers[1].shape.separable);
  EXPECT_FALSE(layers[2].shape.separable);
}

}  // namespace spillway::kfac
