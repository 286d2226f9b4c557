#include "kfac/inverse/precondition.h"

#include <ATen/ATen.h>

namespace spillway::kfac {
namespace {

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(-2, -1);
}

// The layer's gradient between the left and the right multiplications, with columns in the order of denominators().
struct Transformed {
  at::Tensor weight;  // [groups, out, columns]
  at::Tensor bias;    // where it is apart: [groups, out, 1]
};

// Returns Lᵀ ∇ (R_C ⊗ R_K), columns [channels, offsets] → [offsets, channels]; `m` [groups, out, channels·offsets].
at::Tensor into_factors(const at::Tensor& m, const at::Tensor& c, const at::Tensor& k) {
  const int64_t groups = m.size(0), out = m.size(1), in = c.size(1), volume = k.size(1);
  const auto v = m.view({groups, out * in, volume}).bmm(k).view({groups, out, in, volume});
  return transposed(v).reshape({groups, out * volume, in}).bmm(c).view({groups, out, volume * in});
}

// Multiplies by R_C ⊗ R_K as into_factors() does, with columns [offsets, channels] → [channels, offsets].
at::Tensor out_of_factors(const at::Tensor& m, const at::Tensor& c, const at::Tensor& k) {
  const int64_t groups = m.size(0), out = m.size(1), in = c.size(1), volume = k.size(1);
  const auto v = m.reshape({groups, out * volume, in}).bmm(c).view({groups, out, volume, in});
  return transposed(v).reshape({groups, out * in, volume}).bmm(k).view({groups, out, in * volume});
}

at::Tensor denominators_of(const LayerShape& shape, const LayerInverse& inverse, const Damping& damping) {
  std::vector<at::Tensor> values;
  for (size_t f = 0; f < shape.factors().size(); ++f) values.push_back(inverse.held[2 * f + 1]);
  return denominators(shape, values, damping);
}

// Divides in place: V2 = V1 / (v_G v_Aᵀ + γ).
void divide(const LayerShape& shape, const LayerInverse& inverse, const Damping& damping, const Transformed& v) {
  const bool held = shape.inverse.precompute_outer;
  const auto scale = held ? inverse.held.back() : denominators_of(shape, inverse, damping);
  const int64_t columns = v.weight.size(2);
  const auto apply = [&](const at::Tensor& part, const at::Tensor& by) { held ? part.mul_(by) : part.div_(by); };
  apply(v.weight, scale.narrow(2, 0, columns));
  if (v.bias.defined()) apply(v.bias, scale.narrow(2, columns, 1));
}

// Returns L ∇ of every block of rows; `m` [groups, out, columns], `l` [groups·blocks, side, side].
at::Tensor from_left(const at::Tensor& l, const at::Tensor& m) {
  if (!m.defined()) return m;
  return l.bmm(m.reshape({l.size(0), l.size(1), m.size(2)})).view(m.sizes());
}

// Returns ∇ R of every block of columns.
at::Tensor from_right(const at::Tensor& m, const at::Tensor& r) {
  const int64_t groups = m.size(0), out = m.size(1), blocks = r.size(0) / groups, side = r.size(1);
  if (blocks == 1) return m.bmm(r);
  const auto tiles = m.reshape({groups, out, blocks, side}).transpose(1, 2).reshape({groups * blocks, out, side});
  return tiles.bmm(r).view({groups, blocks, out, side}).transpose(1, 2).reshape({groups, out, blocks * side});
}

Transformed solve(const LayerShape& shape, const Transformed& gradient, const LayerInverse& inverse,
                  const Damping& damping) {
  const auto a = inverse.matrix(shape, 0), g = inverse.matrix(shape, 1);
  if (shape.inverse.method != Method::eigen)
    return {from_right(from_left(g, gradient.weight), a), from_left(g, gradient.bias)};
  const auto g_t = transposed(g);
  const Transformed v{from_right(from_left(g_t, gradient.weight), a), from_left(g_t, gradient.bias)};
  divide(shape, inverse, damping, v);
  return {from_right(from_left(g, v.weight), transposed(a)), from_left(g, v.bias)};
}

Transformed solve_separable(const LayerShape& shape, const Transformed& gradient, const LayerInverse& inverse,
                            const Damping& damping) {
  const auto c = inverse.matrix(shape, 0), k = inverse.matrix(shape, 1), g = inverse.matrix(shape, 2);
  if (shape.inverse.method != Method::eigen) {
    const auto v = into_factors(g.bmm(gradient.weight), c, k);
    return {transposed(v.view({v.size(0), v.size(1), k.size(1), c.size(1)})), from_left(g, gradient.bias)};
  }
  const auto g_t = transposed(g);
  const Transformed v{into_factors(g_t.bmm(gradient.weight), c, k), from_left(g_t, gradient.bias)};
  divide(shape, inverse, damping, v);
  return {g.bmm(out_of_factors(v.weight, transposed(c), transposed(k))), from_left(g, v.bias)};
}

}  // namespace

LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const LayerInverse& inverse,
                           const Damping& damping) {
  const auto dtype = inverse.held.back().scalar_type();
  const auto sizes = gradient.weight.sizes();
  auto weight = gradient.weight.to(dtype).reshape({shape.groups, shape.out / shape.groups, -1});
  const auto bias = shape.bias ? gradient.bias.to(dtype).view({shape.groups, -1, 1}) : at::Tensor();
  if (shape.bias_apart() || !shape.bias) {
    const auto v = (shape.separable ? solve_separable : solve)(shape, {weight, bias}, inverse, damping);
    return {v.weight.reshape(sizes), shape.bias ? v.bias.flatten() : at::Tensor()};
  }
  weight = at::cat({weight, bias}, 2);
  const auto v = solve(shape, {weight, {}}, inverse, damping).weight;
  const int64_t last = v.size(2) - 1;
  return {v.narrow(2, 0, last).reshape(sizes), v.select(2, last).flatten()};
}

}  // namespace spillway::kfac
