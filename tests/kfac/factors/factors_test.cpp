#include "kfac/factors/factors.h"

#include <gtest/gtest.h>

#include <limits>

#include "kfac/factors/patches.h"
#include "tests/kfac/factors/layer_cases.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kRoomy = int64_t{1} << 20;

// Returns the statistics captured in one backward of `run`'s layer.
LayerFactors captured_factors(const LayerRun& run, const Layer& layer, int64_t workspace_bytes) {
  LayerFactors factors(layer.shape, layer.weight.options(), workspace_bytes);
  install_capture_hooks(run.loss, {{layer.weight.unsafeGetTensorImpl(), 0}},
                        [&](const Captured& captured) { factors.stage(captured); });
  run.loss.backward();
  return factors;
}

class LayerFactorsTest : public testing::TestWithParam<LayerCase> {};

// Compares the factors of a case, under one form and one workspace, with loops over positions.
void expect_naive_factors(const LayerCase& layer_case, ConvFactors form, int64_t workspace_bytes) {
  const LayerRun run(layer_case);
  const auto layer = find_layers(*run.module, {.conv_factors = form}).layers.at(0);
  auto factors = captured_factors(run, layer, workspace_bytes);
  const auto& fresh = factors.finish(run.input.size(0));
  const auto expected = naive_factors(run, layer_case, layer.shape);
  ASSERT_EQ(fresh.size(), expected.size());
  for (size_t i = 0; i < fresh.size(); ++i)
    EXPECT_LT(largest_difference(fresh[i], expected[i]), 1e-12) << layer_case.name << " factor " << i;
}

}  // namespace

TEST_P(LayerFactorsTest, EqualTheSumsOverAllPositions) {
  expect_naive_factors(GetParam(), ConvFactors::full, kRoomy);
}
TEST_P(LayerFactorsTest, EqualThePartialTracesWhenSeparable) {
  expect_naive_factors(GetParam(), ConvFactors::separable, kRoomy);
}
TEST_P(LayerFactorsTest, DoNotDependOnTheWorkspace) {
  expect_naive_factors(GetParam(), ConvFactors::full, 1);
  expect_naive_factors(GetParam(), ConvFactors::full, 4000);
  expect_naive_factors(GetParam(), ConvFactors::separable, 1);
  expect_naive_factors(GetParam(), ConvFactors::separable, 2000);
}
INSTANTIATE_TEST_SUITE_P(EveryKind, LayerFactorsTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(FactorsTest, ReadInputsOfAnyLayoutAndStride) {
  const auto x = at::randn({2, 3, 4, 5, 4}, at::kDouble);
  const Geometry geometry{{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  auto expected = at::zeros({1, 82, 82}, at::kDouble), sum = at::zeros_like(expected);
  add_input_products(expected, x, &geometry, Lattice::whole(geometry.dims()), kRoomy);
  add_input_products(sum, x.contiguous(at::MemoryFormat::ChannelsLast3d), &geometry, Lattice::whole(geometry.dims()),
                     kRoomy);
  EXPECT_LT(largest_difference(sum, expected), 1e-12);
  sum.zero_();
  add_input_products(sum, x.flip(4).contiguous().flip(4), &geometry, Lattice::whole(geometry.dims()), kRoomy);
  EXPECT_LT(largest_difference(sum, expected), 1e-12);

  auto products = at::zeros({1, 3, 3}, at::kDouble);
  add_output_products(products, at::ones({1, 1, 1, 1}, at::kDouble).expand({2, 3, 4, 5}), kRoomy);
  EXPECT_TRUE(products.equal(at::full({1, 3, 3}, 40, at::kDouble))) << "the expanded gradient of a sum";
}

TEST(FactorsTest, SumLowPrecisionInputsInTheTypeOfTheFactor) {
  const auto x = at::randn({2, 4, 40, 40}, at::kFloat).to(at::kBFloat16);
  for (const Geometry& geometry :
       {Geometry{{1, 1}, {1, 1}, {0, 0}, {1, 1}}, Geometry{{3, 3}, {1, 1}, {1, 1}, {1, 1}}}) {
    const int64_t side = 4 * geometry.kernel_volume();
    auto sum = at::zeros({1, side, side}, at::kFloat), expected = at::zeros_like(sum);
    add_input_products(sum, x, &geometry, Lattice::whole(2), 1 << 12);
    add_input_products(expected, x.to(at::kFloat), &geometry, Lattice::whole(geometry.dims()), kRoomy);
    EXPECT_TRUE(at::allclose(sum, expected, 1e-4, 1e-2));
  }
}

TEST(FactorsTest, CountTheOperationsOfTheirProducts) {
  auto a = at::zeros({1, 4, 4}), g = at::zeros({1, 2, 2});
  EXPECT_EQ(add_input_products(a, at::ones({5, 3}), nullptr, Lattice::whole(1), kRoomy), 2 * 5 * 3 * 3)
      << "ones cost no product";
  EXPECT_EQ(add_output_products(g, at::ones({5, 2, 4}), kRoomy), 2 * 5 * 4 * 2 * 2);
  const Geometry strided{{3}, {2}, {0}, {1}};
  auto patches = at::zeros({1, 6, 6});
  EXPECT_EQ(add_input_products(patches, at::ones({1, 2, 7}), &strided, Lattice::whole(1), kRoomy), 2 * 3 * 6 * 6);
}

TEST(FactorsTest, DoNotDependOnHowABatchIsAccumulated) {
  torch::manual_seed(3);
  torch::nn::Linear linear(3, 2);
  linear->to(at::kDouble);
  const auto layer = find_layers(*linear, {}).layers.at(0);
  const auto x = at::randn({6, 3}, at::kDouble);
  const auto factors_in_parts = [&](int64_t parts) {
    LayerFactors factors(layer.shape, layer.weight.options(), kRoomy);
    for (const auto& part : x.chunk(parts)) {
      const auto loss = linear->forward(part).pow(3).sum(1).mean() / parts;
      install_capture_hooks(loss, {{layer.weight.unsafeGetTensorImpl(), 0}},
                            [&](const Captured& seen) { factors.stage(seen); });
      loss.backward();
    }
    return factors.finish(6);
  };
  const auto whole = factors_in_parts(1), parts = factors_in_parts(3);
  EXPECT_LT(largest_difference(whole[0], parts[0]), 1e-13);
  EXPECT_LT(largest_difference(whole[1], parts[1]), 1e-13);
}

TEST(BoxesTest, CoverEveryPositionOnceWithinTheLimit) {
  for (int64_t limit : {1, 2, 3, 5, 7, 12, 13, 60, 61, 1000}) {
    auto seen = at::zeros({2, 3, 4, 5}, at::kLong);
    for (const auto& box : boxes({2, 3, 4, 5}, limit)) {
      EXPECT_LE(box.rows(), limit);
      auto part = seen;
      for (int64_t d = 0; d < 4; ++d)
        part = part.narrow(d, box.start[static_cast<size_t>(d)], box.size[static_cast<size_t>(d)]);
      part += 1;
    }
    EXPECT_TRUE(seen.eq(1).all().item<bool>()) << limit;
  }
}

}  // namespace spillway::kfac
