#include "runtime/models/bert.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>

#include "core/error.h"
#include "tests/runtime/models/small_models.h"

namespace spillway {
using namespace runtime;
namespace {

BertOptions small() {
  return {.layers = 2, .hidden = 12, .heads = 3, .intermediate = 20, .vocabulary = 50, .positions = 16};
}

}  // namespace

TEST(BertTest, HasTheParametersOfBertBase) {
  Bert net;
  // The count is that of BertForMaskedLM over bert-base-uncased: embeddings, twelve layers, and a head whose matrix is
  // shared.
  const int64_t h = 768, embeddings = (30522 + 512 + 2) * h + 2 * h;
  const int64_t layer = 4 * (h * h + h) + 2 * h + (h * 3072 + 3072) + (3072 * h + h) + 2 * h;
  EXPECT_EQ(parameter_count(*net), embeddings + 12 * layer + (h * h + h) + 2 * h + 30522);
  EXPECT_EQ(parameter_count(*net), 109'514'298);
}

TEST(BertTest, ScoresEveryWordAtThePlacesToGuess) {
  Bert net(small());
  auto tokens = at::randint(50, {3, 9});
  auto places = at::tensor({1, 4, 2, 8, 0, 7}, at::kLong).view({3, 2});
  EXPECT_EQ(net->forward(tokens, places).sizes(), at::IntArrayRef({3, 2, 50}));
}

TEST(BertTest, APlaceIsScoredTheSameWhateverElseIsAsked) {
  Bert net(small());
  net->eval();
  auto tokens = at::randint(50, {1, 9});
  auto both = net->forward(tokens, at::tensor({2, 7}, at::kLong).view({1, 2}));
  auto one = net->forward(tokens, at::tensor({7}, at::kLong).view({1, 1}));
  EXPECT_TRUE(at::allclose(both[0][1], one[0][0], 1e-4, 1e-6));
  EXPECT_FALSE(at::allclose(both[0][0], one[0][0], 1e-4, 1e-6));
}

TEST(BertTest, ALayerIsAttentionAndAFeedForwardNetBesideShortcuts) {
  torch::manual_seed(2);
  const BertOptions options = small();
  BertLayer layer(options);
  layer->eval();
  auto p = layer->named_parameters();
  auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, p[name + ".weight"].t()) + p[name + ".bias"];
  };
  auto norm = [&](const at::Tensor& x, const std::string& name) {
    auto centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + 1e-12).sqrt() * p[name + ".weight"] + p[name + ".bias"];
  };
  const auto x = at::randn({2, 5, options.hidden});
  const int64_t width = options.hidden / options.heads;
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < options.heads; ++h) {
    auto part = [&](const char* name) { return linear(x, name).narrow(2, h * width, width); };
    auto weights = (at::matmul(part("query"), part("key").transpose(1, 2)) / std::sqrt(width)).softmax(-1);
    heads.push_back(at::matmul(weights, part("value")));
  }
  auto y = norm(x + linear(at::cat(heads, 2), "output"), "attention_norm");
  y = norm(y + linear(at::gelu(linear(y, "wide")), "narrow"), "norm");
  EXPECT_TRUE(at::allclose(layer->forward(x), y, 1e-4, 1e-5));
}

TEST(BertTest, TheHeadSharesTheWordsEmbedding) {
  Bert net(small());
  auto tokens = at::full({1, 4}, 3, at::kLong);
  net->forward(tokens, at::tensor({1}, at::kLong).view({1, 1})).sum().backward();
  const at::Tensor gradient = net->named_parameters()["word.weight"].grad();
  // Word 40 is in no input, so only the head can have used its row.
  EXPECT_GT(gradient[40].abs().sum().item<double>(), 0);
}

TEST(BertTest, DropoutActsInTrainingOnly) {
  Bert net(small());
  auto tokens = at::randint(50, {2, 9});
  auto places = at::full({2, 1}, 3, at::kLong);
  EXPECT_FALSE(at::equal(net->forward(tokens, places), net->forward(tokens, places)));
  net->eval();
  EXPECT_TRUE(at::equal(net->forward(tokens, places), net->forward(tokens, places)));
}

TEST(BertTest, StartsWithSmallNormalWeightsAndNoBias) {
  Bert net(small());
  auto p = net->named_parameters();
  EXPECT_EQ(p["layer1.wide.bias"].abs().sum().item<double>(), 0);
  EXPECT_NEAR(p["word.weight"].std().item<double>(), 0.02, 2e-3);
  EXPECT_NEAR(p["layer0.narrow.weight"].std().item<double>(), 0.02, 3e-3);
}

TEST(BertTest, RefusesBadInputAndOptions) {
  Bert net(small());
  auto places = at::zeros({1, 1}, at::kLong);
  EXPECT_NE(message_of([&] { net->forward(at::zeros({1, 17}, at::kLong), places); }).find("1 … 16"), std::string::npos);
  EXPECT_THROW(net->forward(at::zeros({2, 4}, at::kLong), places), c10::Error);
  auto refused = [](BertOptions options) { return message_of([&] { options.validate(); }); };
  EXPECT_NE(refused({.hidden = 200}).find("hidden is 200; allowed is a positive multiple of the 12 heads"),
            std::string::npos);
  EXPECT_NE(refused({.layers = 0}).find("layers"), std::string::npos);
  EXPECT_NE(refused({.dropout = 1}).find("dropout"), std::string::npos);
}

}  // namespace spillway
