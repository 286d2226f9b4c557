/// A simple, slow K-FAC for tests: loops over every position, and explicit Kronecker products. It is float64 and
/// header-only.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kfac/factors/conv_geometry.h"
#include "kfac/inverse/precondition.h"

namespace spillway::reference {

/// Returns all multi-indices below `sizes`, in row-major order.
inline std::vector<std::vector<int64_t>> indices(const std::vector<int64_t>& sizes) {
  std::vector<std::vector<int64_t>> all{{}};
  for (int64_t size : sizes) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& head : all)
      for (int64_t i = 0; i < size; ++i) {
        longer.push_back(head);
        longer.back().push_back(i);
      }
    all = std::move(longer);
  }
  return all;
}

/// Returns x[index], or zero outside.
inline double value_at(const at::Tensor& x, const std::vector<int64_t>& index) {
  at::Tensor part = x;
  for (int64_t i : index) {
    if (i < 0 || i >= part.size(0)) return 0;
    part = part.select(0, i);
  }
  return part.item<double>();
}

/// Returns ã of every output position of one group: [rows, channels·volume (+1)]. Channels stand before offsets, and
/// rows have the order of (sample, position).
inline at::Tensor patch_rows(const at::Tensor& input, const kfac::Geometry& geometry, int64_t group, bool ones) {
  const int64_t channels = input.size(1) / geometry.groups;
  std::vector<int64_t> positions{input.size(0)};
  for (size_t d = 0; d < geometry.dims(); ++d)
    positions.push_back(geometry.output_size(d, input.size(static_cast<int64_t>(d) + 2)));
  std::vector<int64_t> offsets{channels};
  offsets.insert(offsets.end(), geometry.kernel.begin(), geometry.kernel.end());
  std::vector<at::Tensor> rows;
  for (const auto& position : indices(positions)) {
    std::vector<double> row;
    for (const auto& offset : indices(offsets)) {
      std::vector<int64_t> index{position[0], group * channels + offset[0]};
      for (size_t d = 0; d < geometry.dims(); ++d)
        index.push_back(position[d + 1] * geometry.stride[d] - geometry.padding[d] +
                        offset[d + 1] * geometry.dilation[d]);
      row.push_back(value_at(input, index));
    }
    if (ones) row.push_back(1);
    rows.push_back(at::tensor(row, at::kDouble));
  }
  return at::stack(rows);
}

/// Returns A = 1/(B·S) Σ ããᵀ, [groups, side, side].
inline at::Tensor input_factor(const at::Tensor& input, const kfac::Geometry& geometry, bool ones) {
  std::vector<at::Tensor> blocks;
  for (int64_t group = 0; group < geometry.groups; ++group) {
    const auto rows = patch_rows(input, geometry, group, ones);
    blocks.push_back(rows.t().mm(rows) / rows.size(0));
  }
  return at::stack(blocks);
}

/// Returns G = B Σ ggᵀ, [groups, side, side], for gradient [batch, out, *spatial].
inline at::Tensor output_factor(const at::Tensor& gradient, int64_t groups) {
  const auto g = gradient.reshape({gradient.size(0), gradient.size(1), -1})
                     .transpose(0, 1)
                     .reshape({groups, gradient.size(1) / groups, -1});
  return g.bmm(g.transpose(1, 2)) * gradient.size(0);
}

/// Returns C = tr_K(A), as offset_trace returns K = tr_C(A), of A over (channels × offsets), without a bias: [groups,
/// ·, ·].
inline at::Tensor channel_trace(const at::Tensor& a, int64_t channels, int64_t volume) {
  return a.view({a.size(0), channels, volume, channels, volume}).diagonal(0, 2, 4).sum(-1);
}
inline at::Tensor offset_trace(const at::Tensor& a, int64_t channels, int64_t volume) {
  return a.view({a.size(0), channels, volume, channels, volume}).diagonal(0, 1, 3).sum(-1);
}

/// Returns Q diag(v) Qᵀ + τ (I − QQᵀ) of a truncated basis, and Q diag(v) Qᵀ of a full one.
inline at::Tensor rebuilt(const kfac::Eigenbasis& basis) {
  const auto q = basis.vectors.to(at::kDouble), v = basis.values.to(at::kDouble);
  const auto of_span = [&](const at::Tensor& values) { return (q * values.unsqueeze(1)).bmm(q.transpose(1, 2)); };
  const int64_t side = q.size(1), rank = q.size(2);
  if (rank == side) return of_span(v);
  const auto tail = v.narrow(1, rank, 1);
  return of_span(v.narrow(1, 0, rank) - tail) + tail.unsqueeze(2) * at::eye(side, q.options());
}

/// Returns tr/dim of a block-diagonal factor.
inline double mean_eigenvalue(const at::Tensor& factor) {
  return (factor.diagonal(0, -2, -1).sum() / (factor.size(0) * factor.size(1))).item<double>();
}

/// Returns (G ⊗ A + γ I)⁻¹ vec(∇) with the product formed, group by group: `gradient` [groups, out, side].
inline at::Tensor dense_solve(const at::Tensor& g, const at::Tensor& a, const at::Tensor& gradient, double gamma) {
  std::vector<at::Tensor> solved;
  for (int64_t i = 0; i < gradient.size(0); ++i) {
    const auto fisher = at::kron(g[i].contiguous(), a[i].contiguous());
    const auto damped = fisher + gamma * at::eye(fisher.size(0), fisher.options());
    solved.push_back(at::linalg_solve(damped, gradient[i].flatten()).view(gradient[i].sizes()));
  }
  return at::stack(solved);
}

/// Returns F + d I, group by group.
inline at::Tensor plus(const at::Tensor& factor, double d) {
  return factor + d * at::eye(factor.size(1), factor.options());
}

/// Returns the damping of each factor under `plain` and `pi`: γ; π√γ and √γ/π; or m·∛(γ / Π m) of three.
inline std::vector<double> factor_dampings(kfac::Method method, const std::vector<at::Tensor>& factors, double gamma) {
  if (method == kfac::Method::plain) return std::vector<double>(factors.size(), gamma);
  std::vector<double> means;
  for (const auto& factor : factors) means.push_back(mean_eigenvalue(factor));
  if (factors.size() == 2) {
    const double pi = std::sqrt(means[0] / means[1]);
    return {pi * std::sqrt(gamma), std::sqrt(gamma) / pi};
  }
  const double share = std::cbrt(gamma / (means[0] * means[1] * means[2]));
  return {means[0] * share, means[1] * share, means[2] * share};
}

/// Returns the preconditioned gradient of a layer without groups of its own, ∇ = [groups, out, columns]. It solves by G
/// ⊗ A + γI, or by the product of damped factors. `parts` are [A], or [C, K/tr K].
inline at::Tensor natural_matrix(kfac::Method method, const at::Tensor& g, const std::vector<at::Tensor>& parts,
                                 const at::Tensor& matrix, double gamma) {
  const auto product = [](const std::vector<at::Tensor>& all) {
    if (all.size() == 1) return all[0];
    std::vector<at::Tensor> blocks;
    for (int64_t i = 0; i < all[0].size(0); ++i)
      blocks.push_back(at::kron(all[0][i].contiguous(), all[1][i].contiguous()));
    return at::stack(blocks);
  };
  if (method == kfac::Method::eigen) return dense_solve(g, product(parts), matrix, gamma);
  auto all = parts;
  all.push_back(g);
  const auto d = factor_dampings(method, all, gamma);
  for (size_t i = 0; i < all.size(); ++i) all[i] = plus(all[i], d[i]);
  const auto damped_g = all.back();
  all.pop_back();
  return dense_solve(damped_g, product(all), matrix, 0);
}

/// Returns the matrices [groups, blocks·side, blocks·side] whose diagonal is made of the blocks [groups·blocks, side,
/// side].
inline at::Tensor block_diagonal(const at::Tensor& blocks, int64_t groups) {
  std::vector<at::Tensor> all;
  for (const auto& of_group : blocks.chunk(groups)) all.push_back(at::block_diag(of_group.unbind()));
  return at::stack(all);
}

/// Returns the diagonal blocks of [groups, n, n] matrices: [groups·count, n/count, n/count].
inline at::Tensor diagonal_blocks(const at::Tensor& matrices, int64_t count) {
  const int64_t side = matrices.size(1) / count;
  std::vector<at::Tensor> all;
  for (const auto& matrix : matrices.unbind())
    for (int64_t b = 0; b < count; ++b) all.push_back(matrix.narrow(0, b * side, side).narrow(1, b * side, side));
  return at::stack(all);
}

/// Returns the preconditioned gradient of a layer with factors [A, G]. With factors [C, K, G], A = C ⊗ K/tr K is that
/// of the weight. A and G are in the blocks of `shape`.
inline kfac::LayerGradient natural_gradient(const kfac::LayerShape& shape, const kfac::LayerGradient& gradient,
                                            const std::vector<at::Tensor>& factors, const kfac::Damping& damping) {
  const int64_t groups = shape.groups;
  const auto method = shape.inverse.method;
  const auto g = block_diagonal(factors.back(), groups);
  const auto gamma = [&](double mean) {
    const double curvature = damping.curvature.defined() ? damping.curvature.item<double>() : mean;
    return damping.absolute.value_or(damping.relative * curvature);
  };
  auto matrix = gradient.weight.reshape({groups, shape.out / groups, -1});
  if (!shape.separable && !shape.bias_apart()) {
    const auto a = block_diagonal(factors[0], groups);
    if (shape.bias) matrix = at::cat({matrix, gradient.bias.reshape({groups, -1, 1})}, 2);
    const auto v = natural_matrix(method, g, {a}, matrix, gamma(mean_eigenvalue(a) * mean_eigenvalue(g)));
    const int64_t side = matrix.size(2) - (shape.bias ? 1 : 0);
    return {v.narrow(2, 0, side).reshape(gradient.weight.sizes()),
            shape.bias ? v.select(2, side).flatten() : at::Tensor()};
  }
  std::vector<at::Tensor> parts{block_diagonal(factors[0], groups)};
  if (shape.separable) parts.push_back(factors[1] / factors[1].diagonal(0, -2, -1).sum(-1).view({-1, 1, 1}));
  double mean = mean_eigenvalue(g);
  for (const auto& part : parts) mean *= mean_eigenvalue(part);
  const double weight_gamma = gamma(mean);
  const auto weight = natural_matrix(method, g, parts, matrix, weight_gamma);
  kfac::LayerGradient v{weight.reshape(gradient.weight.sizes()), {}};
  if (!shape.bias) return v;
  // The bias has G alone, damped with γ_b under eigen, and otherwise with G's damping for the weight.
  parts.push_back(g);
  const double g_mean = mean_eigenvalue(g);
  const double by_eigenbases = damping.curvature.defined() ? weight_gamma * g_mean / mean : gamma(g_mean);
  const double bias_gamma =
      method == kfac::Method::eigen ? by_eigenbases : factor_dampings(method, parts, weight_gamma).back();
  v.bias = dense_solve(g, at::ones({groups, 1, 1}, g.options()), gradient.bias.reshape({groups, -1, 1}), bias_gamma)
               .flatten();
  return v;
}

}  // namespace spillway::reference
