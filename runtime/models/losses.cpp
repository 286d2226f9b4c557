#include "runtime/models/losses.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace spillway::runtime {
namespace {

void check_same_shape(const char* who, const at::Tensor& probabilities, const at::Tensor& target) {
  TORCH_CHECK(probabilities.dim() >= 3 && probabilities.sizes() == target.sizes(), who, ": probabilities ",
              probabilities.sizes(), " and target ", target.sizes(), " must have the same shape [B, K, …]");
}

// Returns float32 for a tensor of 16 bits, because float16 ends at 65504. The sum over a cube with an edge of 41 voxels
// may exceed that.
at::Tensor wide(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

at::Tensor sum_voxels(const at::Tensor& x) {
  return wide(x).flatten(2).sum(2);
}

}  // namespace

at::Tensor soft_dice_loss(const at::Tensor& probabilities, const at::Tensor& target) {
  check_same_shape("soft_dice_loss", probabilities, target);
  auto overlap = sum_voxels(probabilities * target);
  auto total = sum_voxels(probabilities) + sum_voxels(target);
  return -((2 * overlap + kDiceSmooth) / (total + kDiceSmooth)).mean();
}

at::Tensor weighted_cross_entropy(const at::Tensor& scores, const at::Tensor& target, const at::Tensor& weights) {
  const at::Tensor sum = at::cross_entropy_loss(wide(scores), target, weights, at::Reduction::Sum);
  return sum / static_cast<double>(target.numel());
}

at::Tensor reconstruction_loss(const at::Tensor& logits, const at::Tensor& target) {
  const auto sum = at::binary_cross_entropy_with_logits(wide(logits), target, {}, {}, at::Reduction::Sum);
  return sum / static_cast<double>(target.size(0));
}

double explained_variance(const at::Tensor& reconstruction, const at::Tensor& target) {
  const auto wanted = target.to(at::kDouble);
  const double missed = (wanted - reconstruction.to(at::kDouble)).square().sum().item<double>();
  const double spread = (wanted - wanted.mean()).square().sum().item<double>();
  if (spread == 0) return missed == 0 ? 1 : 0;
  return std::max(0.0, 1 - missed / spread);
}

at::Tensor hard_dice(const at::Tensor& probabilities, const at::Tensor& target) {
  check_same_shape("hard_dice", probabilities, target);
  auto predicted = probabilities.ge(0.5), wanted = target.ge(0.5);
  auto overlap = sum_voxels(predicted.logical_and(wanted)).to(at::kDouble);
  auto total = (sum_voxels(predicted) + sum_voxels(wanted)).to(at::kDouble);
  auto dice = at::where(total.gt(0), 2 * overlap / total, at::ones_like(total));
  return dice.mean(0).to(at::kCPU);
}

double accuracy(const at::Tensor& scores, const at::Tensor& target) {
  return scores.argmax(1).eq(target).to(at::kDouble).mean().item<double>();
}

}  // namespace spillway::runtime
