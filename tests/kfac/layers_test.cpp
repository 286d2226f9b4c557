#include "kfac/layers.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

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
  nn::Sequential inner(nn::Linear(2, 2), nn::Linear(2, 2));
  nn::Sequential model;
  model->push_back("body", inner);
  model->push_back("head", nn::Linear(2, 2));
  const auto found = find_layers(*model, {.skip = {"^head$", "body\\.1"}});
  ASSERT_EQ(found.layers.size(), 1u);
  EXPECT_EQ(found.layers[0].shape.name, "body.0");
  EXPECT_EQ(reason(found, "head"), "skipped by name");
}

TEST(LayersTest, CountsASharedWeightOnce) {
  nn::Linear shared(2, 2);
  nn::Sequential model(shared, nn::ReLU(), shared);
  EXPECT_EQ(find_layers(*model, {}).layers.size(), 1u);
}

TEST(LayersTest, TreatsAFrozenBiasAsNone) {
  nn::Linear linear(2, 2);
  linear->bias.set_requires_grad(false);
  EXPECT_FALSE(find_layers(*linear, {}).layers.at(0).shape.bias);
}

TEST(LayersTest, GoesSeparableWhereTheSideExceedsTheLimit) {
  nn::Sequential model(nn::Conv3d(2, 3, 3), nn::Conv3d(8, 3, 3), nn::Conv3d(8, 3, 1));
  const auto layers = find_layers(*model, {.max_factor_dim = 100}).layers;
  EXPECT_FALSE(layers[0].shape.separable);
  EXPECT_TRUE(layers[1].shape.separable);
  EXPECT_FALSE(layers[2].shape.separable);
}

}  // namespace spillway::kfac
