#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "swap/optim/matrix_optimizer.h"

namespace spillway {
namespace {

/// Returns the matrix with its singular values brought near 1, and a matrix of zeros as it is. An iteration takes a
/// singular value s to as + bs³ + cs⁵ (Jordan et al. 2024).
at::Tensor orthogonalized(const at::Tensor& matrix, int64_t iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315, kMinNorm = 1e-7;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = (tall ? matrix.t() : matrix) / matrix.norm().clamp_min(kMinNorm);
  for (int64_t k = 0; k < iterations; ++k) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return tall ? x.t() : x;
}

}  // namespace

Muon::Muon(const std::vector<at::Tensor>& parameters, MuonOptions options)
    : MatrixOptimizer(parameters, options.lr, options.weight_decay, options.group_bytes, 4),
      options_(options),
      mean_(make_state()) {
  TORCH_CHECK(options.momentum >= 0 && options.momentum < 1, "[optimizer] momentum is ", options.momentum,
              "; it must be in [0, 1)");
  TORCH_CHECK(options.iterations >= 1, "[optimizer] iterations is ", options.iterations, "; it must be 1 or more");
}

std::vector<OptimizerState> Muon::state() const {
  return {{"mean", mean_}};
}

at::Tensor Muon::direction(size_t i, const at::Tensor& gradient) {
  // The mean is the usual momentum times 1 − β. Orthogonalizing takes no notice.
  const at::Tensor mean = as_matrix(mean_[i].lerp_(parameters()[i].grad(), 1 - options_.momentum));
  at::Tensor step =
      orthogonalized(options_.nesterov ? gradient.lerp(mean, options_.momentum) : mean, options_.iterations);
  const auto longer = static_cast<double>(std::max(gradient.size(0), gradient.size(1)));
  return step.mul_(0.2 * std::sqrt(longer));
}

}  // namespace spillway
