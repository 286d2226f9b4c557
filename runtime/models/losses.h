/// Losses and metrics. They use operators of the dispatcher only, because tensors may be paged out at any time.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::runtime {

/// The term added to numerator and denominator of a soft Dice. A label that is absent and predicted absent then scores
/// 1.
inline constexpr double kDiceSmooth = 1e-5;

/// Returns minus the mean over samples b and labels k of the soft Dice coefficient
///     (2 Σ p·t + ε) / (Σ p + Σ t + ε),   sums over the voxels of (b, k).
/// Shape: both [B, K, …] and equal; `target` is 0 or 1. Returns a scalar in [-1, 0]; the mean over a batch equals the
/// mean of its parts' losses. Throws c10::Error when the shapes differ.   Source: Isensee et al. 2017, eq. 1.
at::Tensor soft_dice_loss(const at::Tensor& probabilities, const at::Tensor& target);

/// Returns the cross entropy with a weight for each class, 1/N Σ w_t · (−log softmax(scores)_t), over the N samples and
/// voxels. The divisor is N, not Σ w, so that the mean over a batch equals the mean of its parts' losses.
/// Shape: scores [B, C, …], target [B, …] int64, `weights` [C]; returns a scalar.
at::Tensor weighted_cross_entropy(const at::Tensor& scores, const at::Tensor& target, const at::Tensor& weights);

/// Returns the loss between `target` in 0 … 1 and its reconstruction σ(logits). It is the binary cross entropy, summed
/// over a sample's values, the mean over samples, in nats. Shape: both [B, …]; returns a scalar.
at::Tensor reconstruction_loss(const at::Tensor& logits, const at::Tensor& target);

/// Returns 1 − Σ (target − reconstruction)² / Σ (target − mean of all its values)², and no less than 0; 1 is exact.
/// Shape: both equal.
double explained_variance(const at::Tensor& reconstruction, const at::Tensor& target);

/// Returns the Dice of `probabilities` ≥ 0.5 against `target` ≥ 0.5 for each label, averaged over samples; 1 where both
/// are empty.
/// Shape: both [B, K, …] and equal; returns [K] float64 on the CPU. Counts are exact (int64).
/// Throws c10::Error when the shapes differ.
at::Tensor hard_dice(const at::Tensor& probabilities, const at::Tensor& target);

/// Returns the share of samples and voxels whose highest score is at `target`: 0 … 1. Shape: scores [B, classes, …],
/// target [B, …] int64.
double accuracy(const at::Tensor& scores, const at::Tensor& target);

}  // namespace spillway::runtime
