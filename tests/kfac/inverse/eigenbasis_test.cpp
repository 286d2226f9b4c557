#include "kfac/inverse/eigenbasis.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/kfac/inverse/eigh_conformance.h"
#include "tests/kfac/inverse/subspace_conformance.h"

namespace spillway::kfac {

namespace testing {
struct Cpu {
  static std::optional<at::Device> device() { return at::kCPU; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, EighConformanceTest, Cpu);
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, SubspaceConformanceTest, Cpu);
}  // namespace testing

TEST(EigenTest, RestoresEveryGroupOfTheFactor) {
  const auto x = at::randn({3, 5, 20}, at::kDouble);
  const auto factor = x.bmm(x.transpose(1, 2));
  const auto basis = Eigenbasis::identity(3, 5, factor.options());
  ASSERT_TRUE(decompose(factor, basis));
  const auto restored = (basis.vectors * basis.values.unsqueeze(1)).bmm(basis.vectors.transpose(1, 2));
  EXPECT_TRUE(at::allclose(restored, factor, 1e-12, 1e-12));
}

TEST(EigenTest, ClampsEigenvaluesThatRoundingMadeNegative) {
  const auto x = at::randn({1, 30, 2}, at::kFloat);
  const auto factor = x.bmm(x.transpose(1, 2));
  const auto basis = Eigenbasis::identity(1, 30, factor.options());
  ASSERT_TRUE(decompose(factor, basis));
  EXPECT_GE(basis.values.min().item<float>(), 0);
}

TEST(EigenTest, KeepsTheLastGoodBasisWhenTheFactorCannotBeDecomposed) {
  auto factor = at::eye(4, at::kFloat).unsqueeze(0) * 2;
  const auto basis = Eigenbasis::identity(1, 4, factor.options());
  ASSERT_TRUE(decompose(factor, basis));
  const auto vectors = basis.vectors.clone(), values = basis.values.clone();
  factor[0][1][1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(decompose(factor, basis));
  EXPECT_TRUE(basis.vectors.equal(vectors));
  EXPECT_TRUE(basis.values.equal(values));
}

// Checks a side of 25 floats, so that no matrix but the first begins at a multiple of 64 bytes.
TEST(EigenTest, DecomposesFactorsTogetherAsItDoesEachAlone) {
  std::vector<at::Tensor> factors;
  std::vector<Eigenbasis> together, alone;
  for (int64_t count : {2, 1, 3}) {
    const auto x = at::randn({count, 25, 60}, at::kFloat);
    factors.push_back(x.bmm(x.transpose(1, 2)));
    together.push_back(Eigenbasis::identity(count, 25, at::kFloat));
    alone.push_back(Eigenbasis::identity(count, 25, at::kFloat));
  }
  factors[1][0][3][3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(decompose(at::cat(factors), together), (std::vector{true, false, true}));
  for (size_t i = 0; i < factors.size(); ++i) {
    EXPECT_EQ(decompose(factors[i], alone[i]), i != 1);
    EXPECT_TRUE(together[i].vectors.equal(alone[i].vectors)) << i;
    EXPECT_TRUE(together[i].values.equal(alone[i].values)) << i;
  }
}

TEST(EigenTest, StartsAsTheIdentityWithoutCurvature) {
  const auto basis = Eigenbasis::identity(2, 3, at::kDouble);
  EXPECT_TRUE(basis.vectors[1].equal(at::eye(3, at::kDouble)));
  EXPECT_EQ(basis.values.abs().sum().item<double>(), 0);
}

}  // namespace spillway::kfac
