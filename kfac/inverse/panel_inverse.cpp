#include "kfac/inverse/panel_inverse.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace spillway::kfac {

PanelInverse::PanelInverse(at::Tensor matrices, int64_t most_columns)
    : matrices_(std::move(matrices)),
      m_(matrices_.transpose(1, 2)),
      factored_(at::ones({m_.size(0)}, m_.options().dtype(at::kBool))),
      panels_{m_.size(1), most_columns} {}

void PanelInverse::run_next() {
  const int64_t n = panels_.count(), k = done_ % n;
  if (done_ < n)
    factor(k);
  else if (done_ < 2 * n)
    invert_triangle(k);
  else
    multiply(k);
  ++done_;
}

at::Tensor PanelInverse::solved() const {
  return factored_.logical_and(at::isfinite(matrices_.sum({1, 2})));
}

at::Tensor PanelInverse::below_diagonal(int64_t k) const {
  const int64_t begin = panels_.begin(k);
  return m_.narrow(1, begin, m_.size(1) - begin).narrow(2, begin, panels_.width(k));
}

void PanelInverse::factor(int64_t k) {
  const int64_t begin = panels_.begin(k), width = panels_.width(k);
  const auto panel = below_diagonal(k);
  const int64_t below = panel.size(1) - width;
  auto rest = panel;
  // M[k:, k] − L[k:, :k] L[k, :k]ᵀ
  if (k > 0) {
    const auto before = m_.narrow(2, 0, begin).narrow(1, begin, panel.size(1));
    rest = at::baddbmm(panel, before, before.narrow(1, 0, width).transpose(1, 2), 1, -1);
  }
  const auto [root, info] = at::linalg_cholesky_ex(rest.narrow(1, 0, width));
  if (below > 0)
    panel.narrow(1, width, below)
        .copy_(at::linalg_solve_triangular(root.transpose(1, 2), rest.narrow(1, width, below), /*upper=*/true,
                                           /*left=*/false));
  panel.narrow(1, 0, width).copy_(root);
  factored_.logical_and_(info.eq(0));
}

void PanelInverse::invert_triangle(int64_t k) {
  const auto panel = below_diagonal(k);
  const int64_t begin = panels_.begin(k), rows = panel.size(1);
  auto unit = at::zeros({panel.size(0), panel.size(2), rows}, panel.options()).transpose(1, 2);
  unit.diagonal(0, 1, 2).fill_(1);
  const auto triangle = m_.narrow(1, begin, rows).narrow(2, begin, rows);
  panel.copy_(at::linalg_solve_triangular(triangle, unit, /*upper=*/false));
}

void PanelInverse::multiply(int64_t k) {
  const auto panel = below_diagonal(k);
  const int64_t begin = panels_.begin(k), width = panels_.width(k), below = panel.size(1) - width;
  // M⁻¹[i, k] = X[i:, i]ᵀ X[i:, k]
  std::vector<at::Tensor> blocks;
  for (int64_t i = k; i < panels_.count(); ++i) {
    const auto left = below_diagonal(i);
    blocks.push_back(left.transpose(1, 2).bmm(panel.narrow(1, panel.size(1) - left.size(1), left.size(1))));
  }
  const auto corner = blocks.front().tril();
  blocks.front() = corner + corner.tril(-1).transpose(1, 2);
  panel.copy_(at::cat(blocks, 1));
  // Nothing reads above the diagonal any more.
  if (below > 0)
    m_.narrow(1, begin, width).narrow(2, begin + width, below).copy_(panel.narrow(1, width, below).transpose(1, 2));
}

}  // namespace spillway::kfac
