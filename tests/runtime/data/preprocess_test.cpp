#include "runtime/data/preprocess.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;

TEST(Shape3Test, ReadsCubesAndBoxes) {
  EXPECT_EQ(parse_shape("96"), (Shape3{96, 96, 96}));
  EXPECT_EQ(parse_shape("155x240x32"), (Shape3{155, 240, 32}));
  EXPECT_EQ(format_shape(parse_shape("1x2x3")), "1x2x3");
  for (const char* bad : {"", "x", "96x", "96x96", "1x2x3x4", "0", "-16", "96x96xA", "99999", "96.5"})
    expect_refusal([&] { parse_shape(bad); }, {str("'", bad, "'"), "DxHxW"});
}

TEST(Shape3Test, NamesTheNearestAllowedShape) {
  check_multiple("test", {16, 32, 160}, 16);
  expect_refusal([] { check_multiple("data", {100, 96, 5}, 16); }, {"data", "100x96x5", "depth 100", "96x96x16"});
  expect_refusal([] { check_multiple("data", {96, 0, 96}, 16); }, {"height 0", "96x16x96"});
  EXPECT_EQ(round_up_shape({155, 240, 1}, 16), (Shape3{160, 240, 16}));
}

TEST(PreprocessTest, CentersAndPadsWithTheOddVoxelAtTheEnd) {
  auto line = at::arange(1, 6, at::kFloat).view({1, 1, 5});
  auto wide = fit_center(line, {1, 1, 8})[0][0];
  EXPECT_TRUE(at::equal(wide, at::tensor({0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 0.f, 0.f})));
  auto narrow = fit_center(line, {1, 1, 2})[0][0];
  EXPECT_TRUE(at::equal(narrow, at::tensor({2.f, 3.f})));
}

TEST(PreprocessTest, FitsEveryDimensionByItself) {
  auto volume = at::ones({2, 10, 20, 30});
  auto fitted = fit_center(volume, {16, 20, 16});
  EXPECT_EQ(fitted.sizes(), at::IntArrayRef({2, 16, 20, 16}));
  EXPECT_EQ(fitted.sum().item<double>(), 2 * 10 * 20 * 16);
  EXPECT_EQ(fitted[0][2][0][0].item<float>(), 0);
  EXPECT_EQ(fitted[0][3][0][0].item<float>(), 1);
}

TEST(PreprocessTest, CroppingUndoesPadding) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  for (int64_t edge : {5, 6}) {
    auto volume = at::rand({edge, edge + 1, edge + 2}, generator);
    auto back = fit_center(fit_center(volume, {16, 16, 17}), {edge, edge + 1, edge + 2});
    EXPECT_TRUE(at::equal(back, volume));
  }
}

TEST(PreprocessTest, NormalisesTheBrainAndLeavesTheBackgroundZero) {
  // The nonzero voxels are 2, 4, 6, 8: mean 5, population variance 5.
  auto scan = at::tensor({0.f, 2.f, 4.f, 0.f, 6.f, 8.f}).view({1, 2, 3});
  auto z = normalize_nonzero(scan, "scan").flatten();
  auto expected = (at::tensor({5.f, 2.f, 4.f, 5.f, 6.f, 8.f}) - 5) / std::sqrt(5.0);
  EXPECT_TRUE(at::allclose(z, expected));
  EXPECT_EQ(z[0].item<float>(), 0);
}

TEST(PreprocessTest, RefusesAScanWithoutBrainOrContrast) {
  expect_refusal(
      [] {
        normalize_nonzero(at::zeros({2, 2, 2}), "case 'a' t1");
      },
      {"case 'a' t1", "0 voxels are nonzero"});
  expect_refusal([] { normalize_nonzero(at::full({2, 2, 2}, 7.0), "case 'a' t1"); }, {"all 8", "7", "contrast"});
}

TEST(PreprocessTest, NormalisesAScanInAnyUnitToTheSameBits) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto scan = at::rand({4, 5, 6}, generator);
  const auto expected = normalize_nonzero(scan, "scan");
  for (int exponent : {-100, -60, 60, 120})
    EXPECT_TRUE(at::equal(normalize_nonzero(scan * std::ldexp(1.0, exponent), "scan"), expected)) << exponent;
}

TEST(PreprocessTest, RefusesVoxelsBesideWhichOthersVanish) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  auto scan = at::rand({4, 5, 6}, generator);
  scan[0][0][0] = 3.4e38;
  expect_refusal([&] { normalize_nonzero(scan, "case 'a' t1"); }, {"case 'a' t1", "3.4e+38", "damaged"});
  scan[0][0][1] = 3.4e38;
  scan[0][0][2] = -3.4e38;
  expect_refusal([&] { normalize_nonzero(scan, "case 'a' t1"); }, {"-3.4e+38 to 3.4e+38", "damaged"});
}

TEST(PreprocessTest, MapsLabelsToWholeTumourCoreAndEnhancing) {
  auto labels = at::tensor({0.f, 1.f, 2.f, 4.f}).view({1, 1, 4});
  auto target = overlapping_labels(labels, "seg").view({3, 4});
  EXPECT_TRUE(at::equal(target[0], at::tensor({0.f, 1.f, 1.f, 1.f})));
  EXPECT_TRUE(at::equal(target[1], at::tensor({0.f, 1.f, 0.f, 1.f})));
  EXPECT_TRUE(at::equal(target[2], at::tensor({0.f, 0.f, 0.f, 1.f})));
  expect_refusal([] { overlapping_labels(at::full({1, 1, 2}, 3.0), "case 'b' seg"); }, {"case 'b' seg", "label 3"});
}

TEST(PreprocessTest, RoundsLabelsThatAreWholeUpToRounding) {
  auto labels = at::tensor({-1e-6f, 1.0000001f, 1.99999f, 4.00002f}).view({1, 1, 4});
  EXPECT_FALSE(first_unknown_label(labels));
  auto exact = at::tensor({0.f, 1.f, 2.f, 4.f}).view({1, 1, 4});
  EXPECT_TRUE(at::equal(overlapping_labels(labels, "seg"), overlapping_labels(exact, "seg")));
  EXPECT_EQ(first_unknown_label(at::tensor({0.f, 1.001f, 2.f, 3.f})), 1);
  EXPECT_EQ(first_unknown_label(at::tensor({0.f, -1.f})), 1);
}

}  // namespace spillway
