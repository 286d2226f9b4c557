// Sums of outer products: the arithmetic of factors.h.
#include <ATen/ATen.h>

#include <algorithm>

#include "kfac/factors/factors.h"
#include "kfac/factors/patches.h"
#include "kfac/factors/shifted_products.h"

namespace spillway::kfac {
namespace {

// The length from which rows of positions are multiplied without being gathered; shorter rows are gathered first. On a
// GPU all are gathered that the workspace holds, because there few large products are faster than many.
constexpr int64_t kLongRow = 512;
// The rows of a strip of a Gram matrix: more of them do too much of it twice, fewer make slow products.
constexpr int64_t kStrip = 128;

int64_t rows_that_fit(int64_t workspace_bytes, int64_t features, const at::Tensor& sum) {
  return std::max<int64_t>(1, workspace_bytes / (features * sum.element_size()));
}

// Adds to the last row and column of `sum`, which stand for a feature that is always one, over `count` rows that weigh
// `weight` each.
void add_ones(const at::Tensor& sum, const at::Tensor& feature_sums, int64_t count, int64_t weight) {
  const int64_t n = feature_sums.size(0);
  sum.select(1, n).narrow(0, 0, n).add_(feature_sums, weight);
  sum.select(0, n).narrow(0, 0, n).add_(feature_sums, weight);
  sum.select(0, n).select(0, n).add_(count * weight);
}

double product_flops(int64_t rows, int64_t columns, int64_t inner) {
  return 2 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner);
}

// sum += weight · X Xᵀ for X [features, rows]. Large products are formed strip by strip, each up to the diagonal, and
// added on both sides of it; on a GPU whole, because there the strips' operators take longer than half the product.
double add_gram(const at::Tensor& sum, const at::Tensor& x, int64_t weight) {
  const int64_t n = x.size(0);
  if (!x.is_cpu() || std::min(n, x.size(1)) < 2 * kStrip) {
    sum.addmm_(x, x.t(), 1, weight);
    return product_flops(n, n, x.size(1));
  }
  double flops = 0;
  for (int64_t row = 0; row < n; row += kStrip) {
    const int64_t rows = std::min(kStrip, n - row), end = row + rows;
    const auto product = x.narrow(0, row, rows).mm(x.narrow(0, 0, end).t());
    sum.narrow(0, row, rows).narrow(1, 0, end).add_(product, weight);
    sum.narrow(0, 0, row).narrow(1, row, rows).add_(product.narrow(1, 0, row).t(), weight);
    flops += product_flops(rows, end, x.size(1));
  }
  return flops;
}

// sum += weight · [X; 1] [X; 1]ᵀ for X [features, rows]; the ones only where sum has a row for them, and only in
// `count` of the rows. The others are zero.
double add_outer(const at::Tensor& sum, const at::Tensor& x, int64_t count, int64_t weight) {
  const int64_t n = x.size(0);
  if (sum.size(0) > n) add_ones(sum, x.sum(1), count, weight);
  return add_gram(sum.narrow(0, 0, n).narrow(1, 0, n), x, weight);
}

// sum += [X; 1] [X; 1]ᵀ.
double add_outer(const at::Tensor& sum, const at::Tensor& x) {
  return add_outer(sum, x, x.size(1), 1);
}

// Adds the outer products of x [rows, features]: add_outer() with X = xᵀ.
double add_rows(const at::Tensor& sum, const at::Tensor& x, int64_t workspace_bytes) {
  const int64_t step =
      x.scalar_type() == sum.scalar_type() ? x.size(0) : rows_that_fit(workspace_bytes, x.size(1), sum);
  double flops = 0;
  for (int64_t row = 0; row < x.size(0); row += step)
    flops += add_outer(sum, x.narrow(0, row, std::min(step, x.size(0) - row)).to(sum.scalar_type()).t());
  return flops;
}

// Adds the outer products of x [batch, channels, *spatial], of which every position is a row.
double add_positions(const at::Tensor& sum, const at::Tensor& x, int64_t workspace_bytes) {
  const auto flat = x.flatten(2);
  const int64_t batch = flat.size(0), channels = flat.size(1), length = flat.size(2);
  if (length == 0) return 0;
  const int64_t room = rows_that_fit(workspace_bytes, channels, sum);
  double flops = 0;
  if ((x.is_cpu() ? length >= kLongRow : length > room) || batch == 1) {
    const int64_t step = x.scalar_type() == sum.scalar_type() ? length : room;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < length; s += step)
        flops += add_outer(sum, flat.select(0, b).narrow(1, s, std::min(step, length - s)).to(sum.scalar_type()));
    return flops;
  }
  const int64_t step = std::max<int64_t>(1, room / length);
  for (int64_t b = 0; b < batch; b += step) {
    const auto part = flat.narrow(0, b, std::min(step, batch - b)).to(sum.scalar_type());
    flops += add_outer(sum, part.transpose(0, 1).reshape({channels, -1}));
  }
  return flops;
}

// Returns Σ of add(sum of the group, channels of the group) over the groups, or over their blocks.
template <class Add>
double sum_over_groups(const at::Tensor& sum, const at::Tensor& x, const Add& add) {
  const int64_t groups = sum.size(0), channels = x.size(1) / groups;
  double flops = 0;
  for (int64_t g = 0; g < groups; ++g) flops += add(sum.select(0, g), x.narrow(1, g * channels, channels));
  return flops;
}

double add_without_patches(const at::Tensor& sum, const at::Tensor& x, const Geometry& geometry,
                           int64_t workspace_bytes) {
  const int64_t channels = x.size(1), volume = geometry.kernel_volume(), n = channels * volume;
  const auto block = sum.narrow(0, 0, n).narrow(1, 0, n);
  const double flops = add_shifted_products(block.unflatten(0, {channels, volume}).unflatten(2, {channels, volume}), x,
                                            geometry, workspace_bytes);
  if (sum.size(0) == n) return flops;
  int64_t positions = 1;
  for (int64_t size : output_places(x, geometry, Lattice::whole(geometry.dims()))) positions *= size;
  add_ones(sum, shifted_sums(x, geometry, sum.scalar_type()), positions, 1);
  return flops;
}

// Returns Σ of add(patches of one box of places, its positions) over the boxes.
template <class Add>
double sum_over_patches(const at::Tensor& sum, const at::Tensor& x, const Geometry& geometry, const Lattice& lattice,
                        int64_t workspace_bytes, const Add& add) {
  const int64_t room = rows_that_fit(workspace_bytes, x.size(1) * geometry.kernel_volume(), sum);
  double flops = 0;
  for (const auto& box : boxes(output_places(x, geometry, lattice), room))
    flops += add(patch_matrix(x, geometry, lattice, box, sum.scalar_type()), positions_in(box, x, geometry, lattice));
  return flops;
}

// True when the patches have fewer entries than the input, so that summing over them is less work.
bool patches_have_gaps(const at::Tensor& x, const Geometry& geometry, const Lattice& lattice) {
  int64_t entries = x.size(1) * geometry.kernel_volume();
  for (int64_t size : output_places(x, geometry, lattice)) entries *= size;
  return entries < x.numel();
}

}  // namespace

double add_input_products(const at::Tensor& sum, const at::Tensor& input, const Geometry* geometry,
                          const Lattice& lattice, const PatchWork& work) {
  if (!geometry && !lattice.is_whole()) {
    const auto rows = Geometry::pointwise(1);
    return add_input_products(sum, input.t().unsqueeze(0), &rows, lattice, work);
  }
  return sum_over_groups(sum, input, [&](const at::Tensor& group_sum, const at::Tensor& x) {
    if (!geometry) return add_rows(group_sum, x, work.workspace_bytes);
    if (lattice.is_whole()) {
      if (geometry->is_pointwise()) return add_positions(group_sum, x, work.workspace_bytes);
      if (work.may_shift && prefers_shifts(x, *geometry, false))
        return add_without_patches(group_sum, x, *geometry, work.workspace_bytes);
    }
    const auto add = [&](const at::Tensor& patches, int64_t positions) {
      return add_outer(group_sum, patches.flatten(0, 1), positions, lattice.weight());
    };
    return sum_over_patches(group_sum, x, *geometry, lattice, work.workspace_bytes, add);
  });
}

namespace {

// Adds Σ w x xᵀ over the positions of x [batch, channels, *spatial], each with its `weight` [*spatial]. Short samples
// are gathered, as add_positions() does.
double add_weighted_positions(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight,
                              int64_t workspace_bytes) {
  const int64_t batch = x.size(0), channels = x.size(1), length = weight.numel(), plane = length / weight.size(0);
  const int64_t room = rows_that_fit(workspace_bytes, channels, sum);
  double flops = 0;
  const auto add = [&](const at::Tensor& rows, const at::Tensor& weights) {
    sum.addmm_((rows * weights).flatten(1), rows.flatten(1).t());
    flops += product_flops(channels, channels, rows.numel() / channels);
  };
  if ((x.is_cpu() ? length >= kLongRow : 2 * length > room) || batch == 1) {
    const int64_t step = std::max<int64_t>(1, room / plane);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < weight.size(0); s += step) {
        const int64_t count = std::min(step, weight.size(0) - s);
        add(x.select(0, b).narrow(1, s, count).to(sum.scalar_type()), weight.narrow(0, s, count));
      }
    return flops;
  }
  const int64_t step = std::max<int64_t>(1, room / (2 * length));
  for (int64_t b = 0; b < batch; b += step) {
    const auto part = x.narrow(0, b, std::min(step, batch - b)).to(sum.scalar_type());
    add(part.transpose(0, 1).flatten(2).contiguous(), weight.flatten());
  }
  return flops;
}

}  // namespace

double add_channel_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                            const Lattice& lattice, const PatchWork& work) {
  if (patches_have_gaps(input, geometry, lattice))
    return sum_over_groups(sum, input, [&](const at::Tensor& group_sum, const at::Tensor& x) {
      return sum_over_patches(group_sum, x, geometry, lattice, work.workspace_bytes,
                              [&](const at::Tensor& patches, int64_t) {
                                return add_gram(group_sum, patches.flatten(1), lattice.weight());
                              });
    });
  // tr_K A [c, c'] = Σ_o Σ_k x_c(o·s + k − p) x_c'(o·s + k − p) = Σ_x n(x) x_c x_c', and n(x) = Π_d n_d(x_d).
  auto weight = at::full({}, static_cast<double>(lattice.weight()), sum.options());
  for (size_t d = 0; d < geometry.dims(); ++d)
    weight = weight.unsqueeze(-1) * patches_that_contain(input.size(d + 2), geometry, lattice, d, sum.options());
  return sum_over_groups(sum, input, [&](const at::Tensor& group_sum, const at::Tensor& x) {
    return add_weighted_positions(group_sum, x, weight, work.workspace_bytes);
  });
}

double add_offset_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                           const Lattice& lattice, const PatchWork& work) {
  return sum_over_groups(sum, input, [&](const at::Tensor& group_sum, const at::Tensor& x) {
    if (work.may_shift && lattice.is_whole() && prefers_shifts(x, geometry, true))
      return add_shifted_dots(group_sum, x, geometry, work.workspace_bytes);
    return sum_over_patches(group_sum, x, geometry, lattice, work.workspace_bytes,
                            [&](const at::Tensor& patches, int64_t) {
                              group_sum.add_(at::bmm(patches, patches.transpose(1, 2)).sum(0), lattice.weight());
                              return product_flops(patches.size(1), patches.size(1), patches.size(0) * patches.size(2));
                            });
  });
}

double add_output_products(const at::Tensor& sum, const at::Tensor& gradient, int64_t workspace_bytes) {
  return sum_over_groups(sum, gradient, [&](const at::Tensor& group_sum, const at::Tensor& g) {
    return g.dim() == 2 ? add_rows(group_sum, g, workspace_bytes) : add_positions(group_sum, g, workspace_bytes);
  });
}

}  // namespace spillway::kfac
