/// The conformance suite of eigh(), for every device. A device is a type with `static std::optional<at::Device>
/// device()`, which returns nothing where there is no such device.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <utility>

#include "kfac/inverse/eigenbasis.h"

namespace spillway::kfac::testing {

template <class Device>
class EighConformanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Device::device()) GTEST_SKIP() << "there is no such device";
  }
  static at::Tensor covariance(int64_t count, int64_t side, at::ScalarType type) {
    at::manual_seed(static_cast<uint64_t>(side));
    const auto x = at::randn({count, side, 2 * side}, at::kDouble);
    return x.bmm(x.transpose(1, 2)).to(type).to(*Device::device());
  }
  static void expect_solved(const at::Tensor& matrices) {
    const auto [values, vectors] = eigh(matrices);
    ASSERT_EQ(values.sizes(), (at::IntArrayRef{matrices.size(0), matrices.size(1)}));
    ASSERT_EQ(vectors.sizes(), matrices.sizes());
    const double tolerance = matrices.scalar_type() == at::kDouble ? 1e-12 : 1e-4;
    const auto eye = at::eye(matrices.size(1), matrices.options());
    const auto restored = (vectors * values.unsqueeze(1)).bmm(vectors.transpose(1, 2));
    EXPECT_LT((restored - matrices).norm().template item<double>(),
              tolerance * matrices.norm().template item<double>());
    EXPECT_LT((vectors.transpose(1, 2).bmm(vectors) - eye).abs().max().template item<double>(), tolerance);
    EXPECT_TRUE(values.diff(1, 1).ge(0).all().template item<bool>()) << "ascending";
  }
};
TYPED_TEST_SUITE_P(EighConformanceTest);

TYPED_TEST_P(EighConformanceTest, SolvesEveryMatrixOfAStackWhateverItsSideAndType) {
  for (auto type : {at::kFloat, at::kDouble})
    for (const auto& [count, side] : {std::pair{1, 1}, {3, 2}, {7, 31}, {5, 33}, {2, 129}, {1, 200}, {2, 513}})
      this->expect_solved(this->covariance(count, side, type));
}

TYPED_TEST_P(EighConformanceTest, SolvesMatricesOfRankOneAndVeryManySmallOnes) {
  at::manual_seed(5);
  const auto x = at::randn({2, 513, 1}, at::kFloat).to(*TypeParam::device());
  this->expect_solved(x.bmm(x.transpose(1, 2)));
  this->expect_solved(this->covariance(40'000, 3, at::kFloat));
}

TYPED_TEST_P(EighConformanceTest, ReadsLowerTrianglesAndChangesNothing) {
  auto matrices = this->covariance(3, 20, at::kDouble);
  const auto expected = std::get<0>(eigh(matrices));
  matrices.add_(at::ones_like(matrices).triu(1), 100);
  const auto before = matrices.clone();
  EXPECT_TRUE(at::allclose(std::get<0>(eigh(matrices)), expected, 1e-10, 1e-10));
  EXPECT_TRUE(matrices.equal(before));
}

TYPED_TEST_P(EighConformanceTest, TakesStacksThatAreViews) {
  const auto matrices = this->covariance(6, 9, at::kDouble);
  this->expect_solved(matrices.slice(0, 0, 6, 2));
  this->expect_solved(matrices.transpose(1, 2));
}

TYPED_TEST_P(EighConformanceTest, GivesNoNumbersForWhatIsNoneAndItsNeighboursTheirs) {
  auto matrices = this->covariance(4, 40, at::kFloat);
  const auto alone = std::get<0>(eigh(matrices));
  matrices.select(0, 1).select(0, 5).fill_(std::numeric_limits<float>::quiet_NaN());
  const auto values = std::get<0>(eigh(matrices));
  EXPECT_FALSE(values[1].isfinite().all().template item<bool>());
  for (int i : {0, 2, 3}) EXPECT_TRUE(at::allclose(values[i], alone[i], 1e-4, 1e-3)) << i;
}

REGISTER_TYPED_TEST_SUITE_P(EighConformanceTest, SolvesEveryMatrixOfAStackWhateverItsSideAndType,
                            SolvesMatricesOfRankOneAndVeryManySmallOnes, ReadsLowerTrianglesAndChangesNothing,
                            TakesStacksThatAreViews, GivesNoNumbersForWhatIsNoneAndItsNeighboursTheirs);

}  // namespace spillway::kfac::testing
