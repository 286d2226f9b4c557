#include "kfac/factors/shifted_products.h"

#include <gtest/gtest.h>

#include "kfac/factors/factors.h"
#include "kfac/factors/patches.h"
#include "tests/kfac/factors/layer_cases.h"

namespace spillway::kfac {
namespace {

struct ShiftCase {
  std::vector<int64_t> input;
  Geometry geometry;
};

std::vector<ShiftCase> shift_cases() {
  return {
      {{2, 3, 6}, {{3}, {1}, {1}, {1}}},
      {{2, 2, 9}, {{2}, {1}, {3}, {3}}},
      {{1, 2, 4, 5}, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}},
      {{2, 2, 5, 4}, {{3, 2}, {1, 1}, {0, 1}, {1, 2}}},
      {{1, 2, 4, 5, 3}, {{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}},
      {{2, 2, 3, 4, 5}, {{3, 3, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}}},
      {{1, 2, 3, 2, 4}, {{1, 2, 3}, {1, 1, 1}, {0, 2, 1}, {1, 1, 1}}},
      {{1, 1, 2, 1, 2}, {{3, 3, 3}, {1, 1, 1}, {3, 3, 3}, {1, 1, 1}}},
  };
}

}  // namespace

TEST(ShiftedTest, EqualsThePatchesForAnyPaddingKernelAndDilation) {
  for (const auto& [sizes, geometry] : shift_cases())
    for (int64_t workspace : {1, 1 << 20}) {
      const auto x = at::randn(sizes, at::kDouble);
      const int64_t channels = x.size(1), volume = geometry.kernel_volume();
      const auto rows = reference::patch_rows(x, geometry, 0, false);
      const auto expected = rows.t().mm(rows);
      const auto sum = at::zeros({channels, volume, channels, volume}, at::kDouble);
      add_shifted_products(sum, x, geometry, workspace);
      EXPECT_LT(largest_difference(sum.view(expected.sizes()), expected), 1e-12) << x.sizes();

      const auto dots = at::zeros({volume, volume}, at::kDouble);
      add_shifted_dots(dots, x, geometry, workspace);
      EXPECT_LT(largest_difference(dots, sum.diagonal(0, 0, 2).sum(-1)), 1e-12) << x.sizes();

      EXPECT_LT(largest_difference(shifted_sums(x, geometry, at::kDouble), rows.sum(0)), 1e-12) << x.sizes();
    }
}

TEST(ShiftedTest, IsChosenForLargeImagesAndRefusedForStrides) {
  const Geometry same{{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, strided{{3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}};
  const auto large = at::empty({1, 16, 64, 64, 64}), small = at::empty({1, 4, 3, 3, 3});
  for (bool summed : {false, true}) {
    EXPECT_TRUE(prefers_shifts(large, same, summed));
    EXPECT_FALSE(prefers_shifts(large, strided, summed));
    EXPECT_FALSE(prefers_shifts(small, same, summed));
    EXPECT_FALSE(prefers_shifts(large.to(at::kMeta), same, summed)) << "of another device than the CPU";
  }
}

TEST(PatchesTest, PatchesOfThePaddedInputAreTheSame) {
  auto cases = shift_cases();
  cases.push_back({{2, 3, 9}, {{3}, {2}, {1}, {1}}});
  cases.push_back({{3, 2, 7, 8}, {{3, 2}, {3, 2}, {4, 0}, {1, 2}}});  // some patches lie in the padding alone
  cases.push_back({{1, 2, 6, 5, 7}, {{3, 3, 3}, {2, 1, 2}, {1, 1, 1}, {1, 1, 1}}});
  for (const auto& [sizes, geometry] : cases) {
    const auto x = at::randn(sizes, at::kDouble).transpose(0, 1).contiguous().transpose(0, 1);  // of other strides
    auto sampled = Lattice::whole(geometry.dims());
    for (size_t d = 0; d < geometry.dims(); ++d) {
      sampled.step[d] = 2;
      sampled.start[d] = 1;
    }
    for (const Lattice& lattice : {Lattice::whole(geometry.dims()), sampled})
      for (const int64_t rows : {1, 5, 1000})
        for (const auto& box : boxes(output_places(x, geometry, lattice), rows))
          EXPECT_TRUE(at::equal(patches_of_padded(x, geometry, lattice, box, at::kFloat),
                                patch_matrix(x, geometry, lattice, box, at::kFloat)))
              << x.sizes() << ", " << rows << " rows";
  }
}

TEST(ShiftedTest, IsWhatLargeFactorsAreMadeOf) {
  // The input is large enough for the algorithm with shifted products, which is compared with patches.
  const Geometry geometry{{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  const auto x = at::randn({1, 4, 40, 40, 40}, at::kDouble);
  ASSERT_TRUE(prefers_shifts(x, geometry, false));
  const auto whole = Lattice::whole(3);
  const auto sum = at::zeros({1, 109, 109}, at::kDouble), by_patches = at::zeros_like(sum);
  const double flops = add_input_products(sum, x, &geometry, whole, int64_t{1} << 22);
  EXPECT_GT(add_input_products(by_patches, x, &geometry, whole, {int64_t{1} << 22, /*may_shift_inputs=*/false}), flops);
  auto expected = at::zeros({109, 109}, at::kDouble);
  for (const auto& box : boxes(output_places(x, geometry, whole), 8000)) {
    const auto patches = patch_matrix(x, geometry, whole, box, at::kDouble).flatten(0, 1);
    const auto rows = at::cat({patches, at::ones({1, patches.size(1)}, at::kDouble)});
    expected += rows.mm(rows.t());
  }
  EXPECT_LT(largest_difference(sum[0], expected), 1e-8);
  EXPECT_LT(largest_difference(by_patches[0], expected), 1e-8);
}

}  // namespace spillway::kfac
