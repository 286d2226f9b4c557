// Tests of data for models other than the U-Net.
#include "runtime/data/synthetic.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <functional>

#include "runtime/data/synthetic_tokens.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

struct Source {
  const char* name;
  std::function<std::unique_ptr<Dataset>(uint64_t seed)> open;
};

template <class Data, class Options>
std::unique_ptr<Dataset> make(Options options, uint64_t seed) {
  options.seed = seed;
  return std::make_unique<Data>(options);
}

struct SyntheticSourceTest : ::testing::TestWithParam<Source> {};

bool equal_batches(const Batch& a, const Batch& b) {
  return at::equal(a.input, b.input) && at::equal(a.target, b.target);
}

TEST_P(SyntheticSourceTest, CasesDependOnSeedAndIndexAlone) {
  auto one = GetParam().open(1), again = GetParam().open(1), other = GetParam().open(2);
  const Batch late = one->at(2);
  EXPECT_TRUE(equal_batches(one->at(0), again->at(0)));
  EXPECT_TRUE(equal_batches(late, again->at(2)));
  EXPECT_FALSE(at::equal(one->at(0).input, one->at(1).input));
  EXPECT_FALSE(at::equal(one->at(0).input, other->at(0).input));
  EXPECT_NE(one->name(0), one->name(1));
  EXPECT_THROW(one->at(one->size()), c10::Error);
}

TEST_P(SyntheticSourceTest, ACaseHasTheBytesItSays) {
  auto data = GetParam().open(1);
  const Batch batch = data->at(1);
  EXPECT_EQ(data->case_bytes(), static_cast<int64_t>(batch.input.nbytes() + batch.target.nbytes()));
  EXPECT_EQ(batch.input.size(0), 1);
  EXPECT_EQ(batch.target.size(0), 1);
  EXPECT_TRUE(batch.input.is_contiguous() && batch.target.is_contiguous());
}

TEST_P(SyntheticSourceTest, DoesNotTouchTheGlobalGenerator) {
  torch::manual_seed(3);
  auto expected = at::rand({4});
  torch::manual_seed(3);
  GetParam().open(1)->at(0);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

INSTANTIATE_TEST_SUITE_P(
    Sources, SyntheticSourceTest,
    ::testing::Values(
        Source{"seismic",
               [](uint64_t seed) {
                 return make<SyntheticSeismic>(SyntheticSeismic::Options{.shape = {16, 20, 24}, .cases = 4}, seed);
               }},
        Source{"images",
               [](uint64_t seed) {
                 return make<SyntheticImages>(SyntheticImages::Options{.edge = 40, .cases = 4}, seed);
               }},
        Source{"curves",
               [](uint64_t seed) {
                 return make<SyntheticCurves>(SyntheticCurves::Options{.edge = 20, .cases = 4}, seed);
               }},
        Source{"tokens",
               [](uint64_t seed) {
                 return make<SyntheticTokens>(SyntheticTokens::Options{.length = 50, .cases = 4}, seed);
               }}),
    [](const auto& info) { return info.param.name; });

}  // namespace

TEST(SyntheticSeismicTest, HorizonsPartThreeSequencesFromTheTopDown) {
  SyntheticSeismic data({.shape = {32, 32, 32}, .cases = 6});
  at::Tensor shares = at::zeros({3}, at::kDouble);
  for (int64_t i = 0; i < data.size(); ++i) {
    const Batch batch = data.at(i);
    EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({1, 1, 32, 32, 32}));
    EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({1, 32, 32, 32}));
    EXPECT_TRUE(batch.target.diff(1, 1).ge(0).all().item<bool>());
    shares += at::bincount(batch.target.flatten(), {}, 3) / (32.0 * 32 * 32 * 6);
  }
  for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(shares[c].item<double>(), kSeismicShares[static_cast<size_t>(c)], 0.06);
}

TEST(SyntheticSeismicTest, RefusesShapesThatDoNotHalveTwice) {
  expect_refusal([] { SyntheticSeismic({.shape = {64, 30, 64}}); }, {"64x30x64", "64x32x64", "4"});
  expect_refusal([] { SyntheticSeismic({.cases = 0}); }, {"cases is 0"});
}

TEST(SyntheticImagesTest, ImagesOfAClassAreAlike) {
  SyntheticImages data({.edge = 32, .classes = 2, .cases = 4});
  const Batch batch = gather(data, {0, 2, 1});
  EXPECT_TRUE(at::equal(batch.target, at::tensor({0, 0, 1}, at::kLong)));
  auto distance = [&](int64_t a, int64_t b) { return (batch.input[a] - batch.input[b]).norm().item<double>(); };
  EXPECT_LT(distance(0, 1), distance(0, 2));
  expect_refusal([] { SyntheticImages({.classes = 0}); }, {"classes is 0"});
}

TEST(SyntheticCurvesTest, AreThinConnectedLinesOnAnEmptyGround) {
  constexpr int64_t kEdge = 28;
  SyntheticCurves data({.edge = kEdge, .cases = 8});
  for (int64_t i = 0; i < data.size(); ++i) {
    const Batch batch = data.at(i);
    EXPECT_EQ(batch.target.numel(), 0);
    EXPECT_GE(batch.input.min().item<double>(), 0);
    EXPECT_LE(batch.input.max().item<double>(), 1);
    const at::Tensor ink = batch.input.view({kEdge, kEdge}).gt(0.5);
    const int64_t pixels = ink.sum().item<int64_t>();
    EXPECT_GT(pixels, 3);
    EXPECT_LT(pixels, kEdge * kEdge / 3);
    // A region that grows pixel by pixel from one of the line's pixels reaches all of a connected line.
    at::Tensor reached = at::zeros_like(ink);
    reached.view({-1})[ink.flatten().to(at::kInt).argmax()] = true;
    for (int64_t step = 0; step < 4 * kEdge; ++step)
      reached = at::max_pool2d(reached.to(at::kFloat).view({1, 1, kEdge, kEdge}), 3, 1, 1)
                    .view({kEdge, kEdge})
                    .gt(0)
                    .logical_and(ink);
    EXPECT_EQ(reached.sum().item<int64_t>(), pixels) << data.name(i);
  }
  expect_refusal([] { SyntheticCurves({.edge = 3}); }, {"edge is 3", "4 or more"});
}

TEST(SyntheticTokensTest, SentencesCountAndHideAShareOfTheirWords) {
  SyntheticTokens data({.length = 102, .vocabulary = 140, .cases = 40});
  int64_t masked = 0, kept = 0, swapped = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Batch batch = data.at(i);
    EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({1, 2, 15}));
    const at::Tensor places = batch.target[0][0], truth = batch.target[0][1];
    EXPECT_TRUE(places.diff().gt(0).all().item<bool>());
    const at::Tensor shown = batch.input[0].index_select(0, places);
    const at::Tensor whole = batch.input[0].index_copy(0, places, truth);
    EXPECT_EQ(whole[0].item<int64_t>(), kClassToken);
    EXPECT_EQ(whole[101].item<int64_t>(), kSeparatorToken);
    const at::Tensor words = whole.narrow(0, 1, 100);
    EXPECT_TRUE(words.ge(kFirstWord).logical_and(words.lt(140)).all().item<bool>());
    const at::Tensor strides = words.diff().remainder(140 - kFirstWord);
    EXPECT_TRUE(strides.eq(strides[0]).all().item<bool>());
    masked += shown.eq(kMaskToken).sum().item<int64_t>();
    kept += shown.eq(truth).sum().item<int64_t>();
    swapped += shown.ne(truth).logical_and(shown.ne(kMaskToken)).sum().item<int64_t>();
  }
  EXPECT_NEAR(static_cast<double>(masked) / 600, 0.8, 0.06);
  EXPECT_NEAR(static_cast<double>(kept) / 600, 0.1, 0.05);
  EXPECT_NEAR(static_cast<double>(swapped) / 600, 0.1, 0.05);
}

TEST(SyntheticTokensTest, AShortSentenceHidesOneWord) {
  EXPECT_EQ(SyntheticTokens({.length = 3}).hidden_words(), 1);
  EXPECT_EQ(SyntheticTokens({.length = 128}).hidden_words(), 18);
  expect_refusal([] { SyntheticTokens({.length = 2}); }, {"length is 2"});
  expect_refusal([] { SyntheticTokens({.vocabulary = 104}); }, {"vocabulary is 104"});
}

}  // namespace spillway
