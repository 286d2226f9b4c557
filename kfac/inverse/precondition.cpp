#include "kfac/inverse/precondition.h"

#include <ATen/ATen.h>

#include <utility>

namespace spillway::kfac {
namespace {

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(-2, -1);
}

// Returns ∇ R_K of every channel, with columns [offsets, channels]; `m` [groups, out, channels·offsets]. One product
// for each output: a product of all rows with R_K has too few columns to be fast.
at::Tensor into_offsets(const at::Tensor& m, const at::Tensor& r) {
  const auto by_channel = m.view({m.size(0), m.size(1), -1, r.size(1)});
  return at::matmul(transposed(r).unsqueeze(1), transposed(by_channel)).reshape(m.sizes());
}

// Returns the inverse of into_offsets() for an orthogonal R_K. The products' own results have channels first.
at::Tensor from_offsets(const at::Tensor& m, const at::Tensor& r) {
  const auto by_offset = m.view({m.size(0), m.size(1), r.size(1), -1});
  return at::matmul(transposed(by_offset), transposed(r).unsqueeze(1)).reshape(m.sizes());
}

// Returns `m` [groups, out, offsets·channels] with columns [channels, offsets].
at::Tensor channels_first(const at::Tensor& m, int64_t offsets) {
  return transposed(m.view({m.size(0), m.size(1), offsets, -1})).reshape(m.sizes());
}

// Returns L ∇ of every block of rows; `m` [groups, rows, columns], `l` [groups·blocks, new side, side].
at::Tensor from_left(const at::Tensor& l, const at::Tensor& m) {
  const auto v = l.bmm(m.reshape({l.size(0), l.size(2), m.size(2)}));
  return v.view({m.size(0), -1, m.size(2)});
}

// Returns ∇ R of every block of columns; `r` [groups·blocks, side, new side], or [groups, …] for all blocks of a group.
at::Tensor from_right(const at::Tensor& m, const at::Tensor& r) {
  const int64_t groups = m.size(0), out = m.size(1), side = r.size(1), blocks = m.size(2) / side;
  if (r.size(0) == groups)
    return m.reshape({groups, out * blocks, side}).bmm(r).view({groups, out, blocks * r.size(2)});
  const auto tiles = m.reshape({groups, out, blocks, side}).transpose(1, 2).reshape({groups * blocks, out, side});
  const auto v = tiles.bmm(r).view({groups, blocks, out, -1}).transpose(1, 2);
  return v.reshape({groups, out, blocks * r.size(2)});
}

// Returns a view of `m` [groups, rows, columns] whose entries meet their `scales`, which are as in Scales.
at::Tensor beside(const at::Tensor& scales, const at::Tensor& m) {
  const int64_t rows = scales.size(1), columns = scales.size(3);
  return m.view({m.size(0), rows, m.size(1) / rows, columns, m.size(2) / columns});
}

// Returns `m` with every entry multiplied by its scale.
at::Tensor scaled(const at::Tensor& m, const at::Tensor& scales) {
  return (beside(scales, m) * scales).view(m.sizes());
}

// Returns ∇ Q_A, scaled and multiplied by Q_Aᵀ. What a truncated Q_A leaves out is scaled by `tail`, τ:
//   V = τ ∘ ∇ + ((s − τ) ∘ (∇ Q_A)) Q_Aᵀ,   `kept` = s − τ.
at::Tensor through_columns(at::Tensor m, const at::Tensor& kept, const at::Tensor& tail, const at::Tensor& a) {
  if (!tail.defined()) {
    m = from_right(m, a);
    beside(kept, m).mul_(kept);
    return from_right(m, transposed(a));
  }
  return scaled(m, tail).add_(from_right(scaled(from_right(m, a), kept), transposed(a)));
}

// Returns what `columns`(∇, kept, tail) makes of Q_Gᵀ ∇, multiplied by Q_G; for a truncated Q_G, of which Q_A is not,
// as through_columns() does.
template <class Columns>
at::Tensor through_rows(const at::Tensor& m, const Scales& scales, const at::Tensor& g, const Columns& columns) {
  const auto leading = [&] { return from_left(g, columns(from_left(transposed(g), m), scales.kept, scales.by_g)); };
  return scales.by_a.defined() ? columns(m, scales.by_a, at::Tensor()).add_(leading()) : leading();
}

// Adds L ∇ of every block of rows to `sum`; sizes as from_left() has them.
void add_from_left(const at::Tensor& sum, const at::Tensor& l, const at::Tensor& m) {
  sum.view({l.size(0), l.size(1), m.size(2)}).baddbmm_(l, m.reshape({l.size(0), l.size(2), m.size(2)}));
}

// Adds ∇ R of every block of columns to `sum`; sizes as from_right() has them.
void add_from_right(const at::Tensor& sum, const at::Tensor& m, const at::Tensor& r) {
  const int64_t groups = m.size(0);
  if (r.size(0) == groups)
    sum.view({groups, -1, r.size(2)}).baddbmm_(m.reshape({groups, -1, r.size(1)}), r);
  else
    sum.add_(from_right(m, r));
}

// Returns V where both bases are truncated. It makes few passes over matrices of ∇'s size, because they are most of the
// time. With P = Q_Gᵀ ∇ and N = ∇ Q_A, and the scales of the tails in place of v_G, v_A and both, s_G, s_A and τ:
//   V = τ ∇ + Q_G X + Y Q_Aᵀ,   Y = (s_G − τ) ∘ N,   X = (s_A − τ) ∘ P + ((s − s_G − s_A + τ) ∘ (Q_Gᵀ N)) Q_Aᵀ.
// Overwrites ∇ where nobody else needs it.
at::Tensor through_both(const at::Tensor& m, bool is_needed, const Scales& scales, const at::Tensor& g,
                        const at::Tensor& a) {
  const auto n = from_right(m, a), qt = transposed(g);
  const auto x = scaled(from_left(qt, m), scales.by_g);
  add_from_right(x, scaled(from_left(qt, n), scales.kept), transposed(a));
  if (!is_needed) beside(scales.of_all, m).mul_(scales.of_all);
  auto v = is_needed ? scaled(m, scales.of_all) : m;
  add_from_left(v, g, x);
  add_from_right(v, scaled(n, scales.by_a), transposed(a));
  return v;
}

// The layer's gradient as matrices.
struct Matrices {
  at::Tensor weight;  // [groups, out, columns]
  at::Tensor bias;    // where it is apart: [groups, out, 1]
};

Matrices solve_by_eigenbases(const LayerShape& shape, const Matrices& gradient, const LayerInverse& inverse,
                             const LayerScales& scales) {
  const auto a = inverse.matrix(shape, 0), k = shape.separable ? inverse.matrix(shape, 1) : at::Tensor();
  const auto g = inverse.matrix(shape, shape.separable ? 2 : 1);
  const auto solve = [&](const at::Tensor& m, bool is_needed) {
    if (scales.weight.of_all.defined()) return through_both(m, is_needed, scales.weight, g, a);
    return through_rows(m, scales.weight, g, [&](at::Tensor of, const at::Tensor& kept, const at::Tensor& tail) {
      return through_columns(std::move(of), kept, tail, a);
    });
  };
  Matrices v;
  if (shape.separable) {
    v.weight = from_offsets(solve(into_offsets(gradient.weight, k), /*is_needed=*/false), k);
  } else {
    v.weight = solve(gradient.weight, /*is_needed=*/true);
  }
  if (gradient.bias.defined())
    v.bias = through_rows(
        gradient.bias, scales.bias, g,
        [](const at::Tensor& of, const at::Tensor& kept, const at::Tensor& /*tail*/) { return scaled(of, kept); });
  return v;
}

Matrices solve_by_inverses(const LayerShape& shape, const Matrices& gradient, const LayerInverse& inverse) {
  const auto a = inverse.matrix(shape, 0), g = inverse.matrix(shape, shape.separable ? 2 : 1);
  Matrices v{from_left(g, gradient.weight), gradient.bias.defined() ? from_left(g, gradient.bias) : at::Tensor()};
  if (shape.separable) {
    const auto k = inverse.matrix(shape, 1);
    v.weight = channels_first(from_right(into_offsets(v.weight, k), a), k.size(1));
  } else {
    v.weight = from_right(v.weight, a);
  }
  return v;
}

}  // namespace

LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const LayerInverse& inverse,
                           const LayerScales& scales) {
  const auto dtype = inverse.held.back().scalar_type();
  const auto sizes = gradient.weight.sizes();
  const auto solve = [&](const Matrices& m) {
    return shape.inverse.method == Method::eigen ? solve_by_eigenbases(shape, m, inverse, scales)
                                                 : solve_by_inverses(shape, m, inverse);
  };
  auto weight = gradient.weight.to(dtype).reshape({shape.groups, shape.out / shape.groups, -1});
  const auto bias = shape.bias ? gradient.bias.to(dtype).view({shape.groups, -1, 1}) : at::Tensor();
  if (shape.bias_apart() || !shape.bias) {
    const auto v = solve({weight, bias});
    return {v.weight.reshape(sizes), shape.bias ? v.bias.flatten() : at::Tensor()};
  }
  weight = at::cat({weight, bias}, 2);
  const auto v = solve({weight, {}}).weight;
  const int64_t last = v.size(2) - 1;
  return {v.narrow(2, 0, last).reshape(sizes), v.select(2, last).flatten()};
}

}  // namespace spillway::kfac
