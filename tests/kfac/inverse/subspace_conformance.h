/// The conformance suite of iterate_subspaces(), for every device, which is a type as in eigh_conformance.h.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "kfac/inverse/truncated_eigenbasis.h"

namespace spillway::kfac::testing {

template <class Device>
class SubspaceConformanceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSide = 60, kRank = 6;

  void SetUp() override {
    if (!Device::device()) GTEST_SKIP() << "there is no such device";
  }
  /// Returns factors whose leading eigenvalues stand out, on the host.
  static at::Tensor factors(int64_t count, uint64_t seed) {
    at::manual_seed(seed);
    const auto q = std::get<0>(at::linalg_qr(at::randn({count, kSide, kSide}, at::kDouble)));
    const auto values = at::cat({at::linspace(8, 4, kRank, at::kDouble), at::full({kSide - kRank}, 0.1, at::kDouble)});
    return (q * values).bmm(q.transpose(1, 2));
  }
  static Eigenbasis unseen(int64_t count, const at::TensorOptions& like) {
    Eigenbasis basis{at::zeros({count, kSide, kRank}, like), at::zeros({count, kRank + 1}, like)};
    randomize({basis});
    return basis;
  }
  static at::TensorOptions floats() { return at::TensorOptions(*Device::device()).dtype(at::kFloat); }
  /// Returns the projections on the spans of a basis's eigenvectors, on the host.
  static at::Tensor projections(const Eigenbasis& basis) {
    const auto q = basis.vectors.cpu().to(at::kDouble);
    return q.bmm(q.transpose(1, 2));
  }
};
TYPED_TEST_SUITE_P(SubspaceConformanceTest);

TYPED_TEST_P(SubspaceConformanceTest, FollowsSeveralFactorsAsTheHostFollowsEach) {
  std::vector<at::Tensor> factors;
  std::vector<Eigenbasis> expected, found;
  for (const int64_t count : {1, 3, 2}) {
    const auto of_host = this->factors(count, 1 + static_cast<uint64_t>(count));
    expected.push_back(this->unseen(count, at::kDouble));
    ASSERT_TRUE(iterate_subspace(of_host, expected.back(), kFirstSubspaceIterations));
    factors.push_back(of_host.to(this->floats()));
    found.push_back(this->unseen(count, this->floats()));
  }
  EXPECT_EQ(iterate_subspaces(at::cat(factors), found, kFirstSubspaceIterations), std::vector<bool>(3, true));
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LT((this->projections(found[i]) - this->projections(expected[i])).abs().max().template item<double>(), 1e-4);
    EXPECT_LT((found[i].values.cpu() - expected[i].values).abs().max().template item<double>(), 1e-3);
  }
}

TYPED_TEST_P(SubspaceConformanceTest, AFactorOfZerosOrWithoutNumbersLeavesItsBasisAndTheOthersTheirs) {
  const auto good = this->factors(1, 7).to(this->floats());
  const auto bad = at::full_like(good, std::numeric_limits<float>::quiet_NaN());
  const std::vector<Eigenbasis> bases{this->unseen(1, this->floats()), this->unseen(1, this->floats()),
                                      this->unseen(1, this->floats())};
  const auto before = bases[0].vectors.clone();
  EXPECT_EQ(iterate_subspaces(at::cat({at::zeros_like(good), bad, good}), bases),
            (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(bases[0].vectors.equal(before));
  EXPECT_TRUE(bases[1].vectors.equal(before));
  const auto q = bases[2].vectors;
  const auto identity = at::eye(this->kRank, this->floats());
  EXPECT_LT((q.transpose(1, 2).bmm(q) - identity).abs().max().template item<double>(), 1e-4);
}

REGISTER_TYPED_TEST_SUITE_P(SubspaceConformanceTest, FollowsSeveralFactorsAsTheHostFollowsEach,
                            AFactorOfZerosOrWithoutNumbersLeavesItsBasisAndTheOthersTheirs);

}  // namespace spillway::kfac::testing
