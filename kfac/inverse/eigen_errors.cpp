#include "kfac/inverse/eigen_errors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

namespace spillway::kfac {
namespace {

constexpr int64_t kProbes = 16;
constexpr uint64_t kSeed = 1990;

// Returns ω: [groups, side, kProbes] of ±1, scaled so that the norm of a product with it needs no division.
at::Tensor random_signs(const at::Tensor& like) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  auto signs = at::randint(0, 2, {like.size(1), kProbes}, generator, like.options().device(at::kCPU));
  signs = signs.mul_(2).sub_(1).div_(std::sqrt(static_cast<double>(kProbes)));
  return signs.to(like.device()).expand({like.size(0), like.size(1), kProbes});
}

// Returns norms in float64, because it has room for the squares of a float32 factor of any scale.
at::Tensor norm_of(const at::Tensor& matrices) {
  return at::linalg_vector_norm(matrices, 2, at::IntArrayRef{-2, -1}, false, at::kDouble);
}

double epsilon_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

}  // namespace

EigenErrors eigen_errors(const at::Tensor& factor, const at::Tensor& vectors, const at::Tensor& values,
                         const at::Tensor& weights) {
  const auto rotate_back = [&](const at::Tensor& x) { return vectors.transpose(1, 2).bmm(x); };
  // E x = QᵀFQx − d∘x
  const auto residual = [&](const at::Tensor& x, const at::Tensor& rotated) {
    return rotate_back(factor.bmm(rotated)).sub_(values.unsqueeze(2) * x);
  };
  const auto signs = random_signs(factor), rotated = vectors.bmm(signs);
  EigenErrors errors{norm_of(residual(signs, rotated)), {}, norm_of(rotate_back(rotated).sub_(signs))};
  if (weights.defined()) {
    const auto w = weights.unsqueeze(2), x = signs * w;
    errors.weighted = norm_of(residual(x, vectors.bmm(x)).mul_(w));
  }
  return errors;
}

at::Tensor is_orthogonal(const EigenErrors& errors, const at::Tensor& factor) {
  return errors.orthogonality.le(4 * epsilon_of(factor) * static_cast<double>(factor.size(1)));
}

at::Tensor at_rounding_level(const EigenErrors& errors, const at::Tensor& factor) {
  const double tolerance = 4 * epsilon_of(factor) * std::sqrt(static_cast<double>(factor.size(1)));
  return errors.off.le(norm_of(factor) * tolerance).logical_and(is_orthogonal(errors, factor));
}

}  // namespace spillway::kfac
