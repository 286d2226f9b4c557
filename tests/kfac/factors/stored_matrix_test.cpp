// Tests of state that is kept in 16 bits.
#include "kfac/factors/stored_matrix.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "kfac/factors/factors.h"
#include "kfac/kfac.h"

namespace spillway::kfac {
namespace {
namespace nn = torch::nn;

constexpr FactorDtype kSmall[] = {FactorDtype::bf16, FactorDtype::fp16};

// Returns half of the last bit of a number up to 1.
double rounding(FactorDtype storage) {
  return storage == FactorDtype::bf16 ? 0x1p-9 : 0x1p-12;
}

at::Tensor covariance(int64_t count, int64_t side, double scale) {
  const auto x = at::randn({count, 2 * side, side}) * at::logspace(0, -6, side);
  return x.transpose(1, 2).bmm(x).mul_(scale);
}

StoredMatrix stored(FactorDtype storage, const at::Tensor& like) {
  return {at::zeros_like(like, storage_type(storage, at::kFloat)), at::zeros({like.size(0), like.size(1)})};
}

nn::Sequential small_model() {
  at::manual_seed(3);
  return nn::Sequential(nn::Conv3d(nn::Conv3dOptions(2, 4, 3).padding(1)), nn::ReLU(), nn::Flatten(),
                        nn::Linear(256, 3));
}

// Returns the gradients after `steps` steps on the same data, each preconditioned. No step changes the weights.
std::vector<at::Tensor> gradients_of(const KfacOptions& options, int steps) {
  auto model = small_model();
  Kfac kfac(*model, options);
  for (int step = 0; step < steps; ++step) {
    model->zero_grad();
    at::manual_seed(step);
    const auto loss = model->forward(at::randn({6, 2, 4, 4, 4})).pow(2).mean();
    kfac.watch(loss, 6);
    loss.backward();
    kfac.step();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

double relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).square().sum().item<double>();
    size += b[i].square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST(StoredMatrixTest, RoundsCorrelationsWhateverTheScale) {
  for (auto storage : kSmall)
    for (double scale : {1e-26, 1e-6, 1.0, 1e26}) {
      const auto matrix = covariance(2, 9, scale);
      const auto kept = stored(storage, matrix);
      kept.store(matrix);
      const auto loaded = kept.load();
      const auto root = matrix.diagonal(0, -2, -1).sqrt();
      const auto error = ((loaded - matrix) / root.unsqueeze(1) / root.unsqueeze(2)).abs().max().item<double>();
      EXPECT_LE(error, rounding(storage) * 1.01) << name(storage) << ' ' << scale;
      EXPECT_GT(error, rounding(storage) / 16) << "nothing was rounded";
      EXPECT_TRUE(loaded.diagonal(0, -2, -1).equal(matrix.diagonal(0, -2, -1))) << "traces stay exact";
    }
}

TEST(StoredMatrixTest, KeepsEveryBitOfWhatItGaveOut) {
  for (auto storage : kSmall) {
    const auto matrix = covariance(3, 33, 1e-7);
    const auto kept = stored(storage, matrix);
    kept.store(matrix);
    const auto entries = kept.entries.clone(), loaded = kept.load();
    kept.store(loaded);
    EXPECT_TRUE(kept.entries.equal(entries));
    EXPECT_TRUE(kept.load().equal(loaded));
  }
}

// Checks exact symmetry. Where two halves of a Gram matrix differ by a rounding, 16-bit entries may differ by 2⁻¹¹. No
// eigensolver's check would accept that.
TEST(StoredMatrixTest, IsExactlySymmetric) {
  for (auto storage : kSmall) {
    const auto matrix = covariance(1, 300, 1);
    const auto kept = stored(storage, matrix);
    kept.store(matrix + matrix.triu(1) * 1e-7);
    const auto loaded = kept.load();
    EXPECT_TRUE(loaded.equal(loaded.transpose(1, 2)));
  }
}

TEST(StoredMatrixTest, KeepsFeaturesThatNobodyHasSeenAtZero) {
  auto matrix = covariance(1, 4, 1);
  matrix.select(1, 2).zero_();
  matrix.select(2, 2).zero_();
  const auto kept = stored(FactorDtype::fp16, matrix);
  kept.store(matrix);
  EXPECT_EQ(kept.load().select(1, 2).abs().max().item<float>(), 0);
  kept.store(at::zeros_like(matrix));
  EXPECT_EQ(kept.load().abs().max().item<float>(), 0);
}

TEST(StoredMatrixTest, IsTheMatrixItselfInFullWidth) {
  const auto matrix = covariance(1, 4, 1);
  const StoredMatrix kept{matrix, {}};
  EXPECT_TRUE(kept.load().is_same(matrix));
  kept.store(at::eye(4).unsqueeze(0));
  EXPECT_TRUE(matrix[0].equal(at::eye(4)));
}

TEST(StoredTriangleTest, KeepsTheBitsOfASymmetricMatrixInHalfItsBytes) {
  for (int64_t side : {1, 2, 3, 8, 33}) {
    const FactorShape shape{.role = FactorRole::input, .side = side, .count = 3};
    const auto matrix = covariance(3, side, 1);
    const auto symmetric = matrix + matrix.transpose(1, 2);
    const StoredTriangle kept{at::zeros(shape.triangle_sizes()), {}};
    kept.store(symmetric);
    EXPECT_TRUE(kept.load().equal(symmetric)) << side;
    EXPECT_EQ(kept.entries.numel(), 3 * side * (side + 1) / 2) << side;
  }
}

TEST(StoredTriangleTest, KnowsTheTracesOfItsMatrices) {
  for (int64_t side : {1, 2, 3, 8, 33})
    for (auto storage : {FactorDtype::fp32, FactorDtype::fp16}) {
      const FactorShape shape{.role = FactorRole::input, .side = side, .count = 3};
      const auto matrix = covariance(3, side, 1);
      const bool small = storage == FactorDtype::fp16;
      const StoredTriangle kept{at::zeros(shape.triangle_sizes(), storage_type(storage, at::kFloat)),
                                small ? at::zeros({3, side}) : at::Tensor()};
      kept.store(matrix);
      EXPECT_TRUE(traces({kept, kept}).allclose(matrix.diagonal(0, 1, 2).sum(1).repeat(2)))
          << side << ' ' << name(storage);
    }
}

TEST(StoredTriangleTest, RoundsAsAWholeMatrixDoes) {
  for (auto storage : kSmall) {
    const FactorShape shape{.role = FactorRole::input, .side = 33, .count = 2};
    const auto matrix = covariance(2, 33, 1e-7);
    const auto whole = stored(storage, matrix);
    const StoredTriangle kept{at::zeros(shape.triangle_sizes(), storage_type(storage, at::kFloat)), at::zeros({2, 33})};
    whole.store(matrix);
    kept.store(matrix);
    EXPECT_TRUE(kept.load().equal(whole.load())) << name(storage);
  }
}

TEST(KfacStorageTest, GivesTheGradientOfFullWidthToWithinItsRounding) {
  for (auto method : {Method::eigen, Method::pi})
    for (auto form : {ConvFactors::full, ConvFactors::separable}) {
      KfacOptions options{.method = method,
                          .factor_interval = 1,
                          .inverse_interval = 1,
                          .eigen_rank = EigenRank::full(),
                          .relative_damping = 0.3,
                          .kl_clip = std::numeric_limits<double>::infinity(),
                          .conv_factors = form};
      const auto full = gradients_of(options, 4);
      for (auto storage : kSmall) {
        options.storage = storage;
        const double difference = relative_difference(gradients_of(options, 4), full);
        // Independent roundings of a matrix's entries move its spectrum by twice the root of its side.
        EXPECT_LT(difference, 2 * std::sqrt(257.0) * rounding(storage)) << name(method) << ' ' << name(storage);
        EXPECT_GT(difference, 0) << "nothing was rounded";
      }
    }
}

TEST(KfacStorageTest, HalvesWhatIsHeld) {
  for (auto storage : kSmall) {
    auto model = small_model();
    const auto bytes = Kfac(*model, {.eigen_rank = EigenRank::full(), .storage = storage}).usage().bytes;
    const auto wide = Kfac(*model, {.eigen_rank = EigenRank::full()}).usage().bytes;
    // The matrices have the sides 55, 4, 257 and 3. Their diagonals and eigenvalues stay in float32.
    // Running averages are triangles.
    EXPECT_EQ(wide.factors - bytes.factors, 2 * (55 * 56 + 4 * 5 + 257 * 258 + 3 * 4) / 2 - 4 * (55 + 4 + 257 + 3));
    EXPECT_EQ(wide.eigenbases - bytes.eigenbases, 2 * (55 * 55 + 4 * 4 + 257 * 257 + 3 * 3));
  }
}

TEST(KfacStorageTest, LeavesRunningAveragesUntouchedByAStepThatOverflows) {
  for (auto storage : kSmall) {
    auto model = small_model();
    Kfac kfac(*model, {.factor_interval = 1, .inverse_interval = 1, .storage = storage});
    const auto step = [&](float scale) {
      model->zero_grad();
      const auto loss = model->forward(at::randn({4, 2, 4, 4, 4})).pow(2).mean() * scale;
      kfac.watch(loss, 4);
      loss.backward();
      kfac.step();
    };
    step(1);
    std::vector<at::Tensor> before;
    for (size_t i = 0; i < 2; ++i)
      for (const auto& tensor : kfac.state().held_factors(i)) before.push_back(tensor.clone());
    step(std::numeric_limits<float>::infinity());
    EXPECT_EQ(kfac.counters().dropped_factors, 2) << "G of both layers";
    const auto of_linear = kfac.state().held_factors(1);
    EXPECT_TRUE(of_linear[2].equal(before[6])) << "correlations of G";
    EXPECT_TRUE(of_linear[3].equal(before[7])) << "diagonal of G";
  }
}

TEST(KfacStorageTest, ResumesBitByBitFromItsState) {
  for (auto storage : kSmall) {
    const KfacOptions options{.factor_interval = 2, .inverse_interval = 4, .burn_in = 0, .storage = storage};
    auto model = small_model();
    Kfac first(*model, options);
    const auto step = [&](Kfac& kfac, int seed) {
      model->zero_grad();
      at::manual_seed(seed);
      const auto loss = model->forward(at::randn({4, 2, 4, 4, 4})).pow(2).mean();
      kfac.watch(loss, 4);
      loss.backward();
      kfac.step();
      return model->parameters()[0].grad().clone();
    };
    for (int i = 0; i < 3; ++i) step(first, i);
    Kfac second(*model, options);
    second.load_state_dict(first.state_dict());
    for (int i = 3; i < 7; ++i) EXPECT_TRUE(step(first, i).equal(step(second, i))) << i;
    Kfac wide(*model, {});
    EXPECT_THROW(wide.load_state_dict(first.state_dict()), BadRequest);
  }
}

TEST(KfacStorageTest, IsRefusedWithWarmStarts) {
  EXPECT_THROW(KfacOptions({.warm_start = 1e-3, .storage = FactorDtype::bf16}).validate(), BadRequest);
}

}  // namespace spillway::kfac
