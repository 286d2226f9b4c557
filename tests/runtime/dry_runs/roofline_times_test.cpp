// Tests of times from a device's rates.
#include "runtime/dry_runs/roofline_times.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <vector>

namespace spillway::runtime {
namespace {

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

std::vector<c10::IValue> convolution(const at::Tensor& input, const at::Tensor& weight) {
  return {input,
          weight,
          c10::IValue(),
          std::vector<int64_t>{1, 1},
          std::vector<int64_t>{1, 1},
          std::vector<int64_t>{1, 1},
          false,
          std::vector<int64_t>{0, 0},
          int64_t{1}};
}

TEST(RooflineTest, FlopsCountMultiplicationsAndAdditions) {
  const at::Tensor a = at::empty({3, 5}), b = at::empty({5, 7});
  EXPECT_EQ(flops_of(find("aten::mm"), std::vector<c10::IValue>{a, b}), 2.0 * 3 * 5 * 7);
  const at::Tensor batch = at::empty({2, 3, 5}), other = at::empty({2, 5, 7});
  EXPECT_EQ(flops_of(find("aten::bmm"), std::vector<c10::IValue>{batch, other}), 2.0 * 2 * 3 * 5 * 7);
  const auto conv = convolution(at::empty({2, 4, 8, 8}), at::empty({6, 4, 3, 3}));
  EXPECT_EQ(flops_of(find("aten::convolution"), conv), 2.0 * 2 * 64 * 6 * 4 * 9);
  EXPECT_EQ(flops_of(find("aten::add", "Tensor"), std::vector<c10::IValue>{a, a, 1}), 0);
}

TEST(RooflineTest, TheLongerOfOperationsAndBytesCounts) {
  RooflineTimes times({.matrix_flops = 1e3, .convolution_flops = 1e6, .half_flops = 1e4, .bytes_per_second = 1e3});
  const at::Tensor a = at::empty({10, 10});
  // 2000 operations take 2 s; three matrices of 400 bytes take 1.2 s.
  EXPECT_DOUBLE_EQ(times.seconds(find("aten::mm"), std::vector<c10::IValue>{a, a}), 2.0);
  EXPECT_DOUBLE_EQ(times.seconds(find("aten::relu"), std::vector<c10::IValue>{a}), 0.8);
  const at::Tensor half = at::empty({10, 10}, at::kBFloat16);
  EXPECT_DOUBLE_EQ(times.seconds(find("aten::mm"), std::vector<c10::IValue>{half, half}), 0.6);
}

TEST(RooflineTest, AnOperatorTakesTheLeastTimeAtLeast) {
  RooflineTimes times({.matrix_flops = 1e12,
                       .convolution_flops = 1e12,
                       .half_flops = 1e12,
                       .bytes_per_second = 1e12,
                       .operator_seconds = 5e-6,
                       .gap_seconds = 1e-6,
                       .library_gap_seconds = 4e-6});
  EXPECT_DOUBLE_EQ(times.seconds(find("aten::relu"), std::vector<c10::IValue>{at::empty({1})}), 5e-6);
  EXPECT_DOUBLE_EQ(times.gap_seconds(find("aten::relu")), 1e-6);
  EXPECT_DOUBLE_EQ(times.gap_seconds(find("aten::convolution")), 4e-6);
}

TEST(RooflineTest, ConvolutionsOfFewChannelsAreSlow) {
  RooflineTimes times({.matrix_flops = 1,
                       .convolution_flops = 1e6,
                       .convolution_channels = 16,
                       .half_flops = 1,
                       .bytes_per_second = 1e12});
  const auto seconds = [&](int64_t in, int64_t out) {
    return times.seconds(find("aten::convolution"), convolution(at::empty({1, in, 8, 8}), at::empty({out, in, 3, 3})));
  };
  const auto flops = [](double in, double out) { return 2 * 64 * out * in * 9; };
  EXPECT_DOUBLE_EQ(seconds(16, 16), flops(16, 16) / 1e6);
  EXPECT_DOUBLE_EQ(seconds(32, 32), flops(32, 32) / 1e6);
  EXPECT_DOUBLE_EQ(seconds(4, 4), 8 * flops(4, 4) / 1e6);  // (4/16)^1.5 is an eighth
  EXPECT_DOUBLE_EQ(seconds(2, 8), 8 * flops(2, 8) / 1e6);  // whose geometric mean is 4
}

TEST(RooflineTest, DecompositionsFollowTheTable) {
  RooflineTimes times({.eigh_seconds = {{100, 1}, {400, 16}}});
  const auto seconds = [&](int64_t count, int64_t side) {
    return times.seconds(find("aten::_linalg_eigh"),
                         std::vector<c10::IValue>{at::empty({count, side, side}), "L", true});
  };
  EXPECT_DOUBLE_EQ(seconds(1, 100), 1);
  EXPECT_NEAR(seconds(1, 200), 4, 1e-9);  // the table's slope is 2
  EXPECT_NEAR(seconds(3, 400), 48, 1e-9);
  EXPECT_NEAR(seconds(1, 800), 128, 1e-9);  // beyond the table by the cube
}

}  // namespace
}  // namespace spillway::runtime
