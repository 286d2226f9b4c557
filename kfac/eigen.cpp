#include "kfac/eigen.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <optional>

#include "core/category.h"
#include "kfac/eigen_check.h"

namespace spillway::kfac {
namespace {

struct Solution {
  at::Tensor values;
  at::Tensor vectors;
};

// What LAPACK found, if it is a decomposition indeed.
std::optional<Solution> solve(const at::Tensor& factor) {
  try {
    auto [values, vectors] = at::linalg_eigh(factor);
    if (at_rounding_level(eigen_errors(factor, vectors, values), factor).all().item<bool>())
      return Solution{values, vectors};
  } catch (const c10::LinAlgError&) {
  }
  return std::nullopt;
}

}  // namespace

Eigenbasis Eigenbasis::identity(int64_t groups, int64_t side, const at::TensorOptions& like) {
  CategoryScope scope(Category::eigenbases);
  Eigenbasis basis{at::zeros({groups, side, side}, like), at::zeros({groups, side}, like)};
  basis.vectors.diagonal(0, -2, -1).fill_(1);
  return basis;
}

bool decompose(const at::Tensor& factor, const Eigenbasis& basis) {
  auto solution = solve(factor);
  if (!solution && factor.scalar_type() != at::kDouble) solution = solve(factor.to(at::kDouble));
  if (!solution) return false;
  basis.values.copy_(solution->values.clamp_min_(0));
  basis.vectors.copy_(solution->vectors);
  return true;
}

}  // namespace spillway::kfac
