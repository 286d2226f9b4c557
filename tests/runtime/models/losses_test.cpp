#include "runtime/models/losses.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>

namespace spillway {
using namespace runtime;

at::Tensor voxels(std::initializer_list<double> values, int64_t labels) {
  return at::tensor(at::ArrayRef<double>(values), at::kFloat).view({1, labels, -1, 1, 1});
}

TEST(LossesTest, SoftDiceIsTheMeanOverLabelsWorkedByHand) {
  // Label 0: 2 (0.5 + 1) / (1.75 + 2) = 0.8. Label 1: 2 · 0.25 / (0.25 + 0.75 + 1) = 0.25.
  auto p = voxels({0.5, 1, 0.25, 0, 0.25, 0.75, 0, 0}, 2);
  auto t = voxels({1, 1, 0, 0, 1, 0, 0, 0}, 2);
  EXPECT_NEAR(soft_dice_loss(p, t).item<double>(), -(0.8 + 0.25) / 2, 1e-5);
}

TEST(LossesTest, SoftDiceOfAPerfectOrEmptyLabelIsOne) {
  auto t = voxels({1, 0, 1, 0, 0, 0, 0, 0}, 2);
  EXPECT_NEAR(soft_dice_loss(t, t).item<double>(), -1, 1e-6);
}

TEST(LossesTest, ReconstructionIsTheCrossEntropyOfAllValuesOfASample) {
  const auto target = at::tensor({0.0, 1.0, 0.5, 1.0, 1.0, 0.0}, at::kDouble).view({2, 3});
  EXPECT_NEAR(reconstruction_loss(at::zeros({2, 3}, at::kDouble), target).item<double>(), 3 * std::log(2.0), 1e-12);
  // The loss is −log σ(2) for each right voxel and −log σ(−2) for each wrong one. Dividing by the number gives their
  // mean.
  const double right = std::log1p(std::exp(-2.0)), wrong = 2 + right;
  EXPECT_NEAR(reconstruction_loss(at::full({2, 3}, 2, at::kDouble), target).item<double>(),
              (3 * right + 2 * wrong + (right + wrong) / 2) / 2, 1e-12);
}

TEST(LossesTest, ExplainedVarianceIsOneForTheTargetAndZeroForItsMean) {
  const auto target = at::tensor({0.0, 1.0, 1.0, 0.0, 0.5, 0.5}, at::kDouble).view({3, 2});
  EXPECT_EQ(explained_variance(target, target), 1);
  EXPECT_NEAR(explained_variance(at::full_like(target, 0.5), target), 0, 1e-12);
  EXPECT_NEAR(explained_variance((target + 0.5) / 2, target), 0.75, 1e-12);
  EXPECT_NEAR(explained_variance((target[0] + 0.5) / 2, target[0]), 0.75, 1e-12) << "of one sample, too";
  EXPECT_EQ(explained_variance(1 - target, target), 0) << "worse than the mean";
}

TEST(LossesTest, SoftDiceOfABatchIsTheMeanOfItsSamples) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  auto p = at::rand({3, 2, 4, 4, 4}, generator);
  auto t = at::rand({3, 2, 4, 4, 4}, generator).gt(0.5).to(at::kFloat);
  double sum = 0;
  for (int64_t b = 0; b < 3; ++b) sum += soft_dice_loss(p.narrow(0, b, 1), t.narrow(0, b, 1)).item<double>();
  EXPECT_NEAR(soft_dice_loss(p, t).item<double>(), sum / 3, 1e-6);
}

TEST(LossesTest, SoftDiceHasTheGradientOfItsFormula) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(4);
  auto p = at::rand({1, 1, 8}, generator, at::kDouble).requires_grad_(true);
  auto t = at::rand({1, 1, 8}, generator, at::kDouble).gt(0.5).to(at::kDouble);
  soft_dice_loss(p, t).backward();
  // d/dp_i −(2 Σpt + ε)/S = −(2 t_i S − (2 Σpt + ε)) / S²
  auto overlap = 2 * (p * t).sum() + kDiceSmooth, total = p.sum() + t.sum() + kDiceSmooth;
  auto expected = -(2 * t * total - overlap) / (total * total);
  EXPECT_TRUE(at::allclose(p.grad(), expected.detach(), 1e-9, 1e-12));
}

TEST(LossesTest, HardDiceThresholdsAtAHalfAndCallsEmptyAgainstEmptyOne) {
  auto p = voxels({0.5, 0.9, 0.49, 0.6, 0.1, 0.2, 0, 0, 0.9, 0, 0, 0}, 3);
  auto t = voxels({1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0}, 3);
  auto dice = hard_dice(p, t);
  EXPECT_DOUBLE_EQ(dice[0].item<double>(), 2.0 * 2 / (3 + 3));
  EXPECT_DOUBLE_EQ(dice[1].item<double>(), 1);
  EXPECT_DOUBLE_EQ(dice[2].item<double>(), 0);
}

TEST(LossesTest, RefusesShapesThatDiffer) {
  EXPECT_THROW(soft_dice_loss(at::rand({1, 3, 2, 2, 2}), at::rand({1, 2, 2, 2, 2})), c10::Error);
  EXPECT_THROW(hard_dice(at::rand({1, 3, 2, 2, 2}), at::rand({3, 2, 2, 2})), c10::Error);
}

TEST(LossesTest, WeightedCrossEntropyIsTheMeanOverVoxelsWorkedByHand) {
  const auto scores = at::tensor({1.0, 0.0, 0.5, 2.0, -1.0, 0.0}, at::kDouble).view({1, 3, 2});
  const auto target = at::tensor({2, 1}, at::kLong).view({1, 2});
  const auto weights = at::tensor({1.0, 2.0, 4.0}, at::kDouble);
  // The first term is −log softmax of score −1 among (1, 0.5, −1), weight 4. The second is that of score 2 among (0, 2,
  // 0), weight 2.
  const double first = 1 + std::log(std::exp(1.0) + std::exp(0.5) + std::exp(-1.0));
  const double second = -2 + std::log(2 + std::exp(2.0));
  EXPECT_NEAR(weighted_cross_entropy(scores, target, weights).item<double>(), (4 * first + 2 * second) / 2, 1e-12);
}

TEST(LossesTest, AccuracyCountsTheHighestScores) {
  auto scores = at::tensor({0.1, 0.9, 0.8, 0.2, 0.3, 0.7, 0.6, 0.4}).view({4, 2});
  EXPECT_DOUBLE_EQ(accuracy(scores, at::tensor({1, 0, 0, 0}, at::kLong)), 0.75);
}

}  // namespace spillway
