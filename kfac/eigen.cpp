#include "kfac/eigen.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <optional>
#include <tuple>

#include "core/category.h"

namespace spillway::kfac {
namespace {

std::optional<std::tuple<at::Tensor, at::Tensor>> solve(const at::Tensor& factor) {
  try {
    auto solution = at::linalg_eigh(factor);
    const auto sum = std::get<0>(solution).sum() + std::get<1>(solution).sum();
    if (at::isfinite(sum).item<bool>()) return solution;
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
  basis.values.copy_(std::get<0>(*solution).clamp_min_(0));
  basis.vectors.copy_(std::get<1>(*solution));
  return true;
}

}  // namespace spillway::kfac
