#include "kfac/precondition.h"

#include <ATen/ATen.h>

namespace spillway::kfac {
namespace {

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(-2, -1);
}

// The layer's gradient between the left and the right multiplications: columns as denominators() has them.
struct Transformed {
  at::Tensor weight;  // [groups, out, columns]
  at::Tensor bias;    // separable only: [groups, out, 1]
};

// Lᵀ ∇ (R_C ⊗ R_K), columns [channels, offsets] → [offsets, channels]; `m` [groups, out, channels·offsets].
at::Tensor into_factors(const at::Tensor& m, const at::Tensor& c, const at::Tensor& k) {
  const int64_t groups = m.size(0), out = m.size(1), in = c.size(1), volume = k.size(1);
  const auto v = m.view({groups, out * in, volume}).bmm(k).view({groups, out, in, volume});
  return transposed(v).reshape({groups, out * volume, in}).bmm(c).view({groups, out, volume * in});
}

// The same with columns [offsets, channels] → [channels, offsets].
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

// V2 = V1 / (v_G v_Aᵀ + γ), in place.
void divide(const LayerShape& shape, const LayerInverse& inverse, const Damping& damping, const Transformed& v) {
  const bool held = shape.inverse.precompute_outer;
  const auto scale = held ? inverse.held.back() : denominators_of(shape, inverse, damping);
  const int64_t columns = v.weight.size(2);
  const auto apply = [&](const at::Tensor& part, const at::Tensor& by) { held ? part.mul_(by) : part.div_(by); };
  apply(v.weight, scale.narrow(2, 0, columns));
  if (v.bias.defined()) apply(v.bias, scale.narrow(2, columns, 1));
}

at::Tensor solve_full(const LayerShape& shape, const at::Tensor& matrix, const LayerInverse& inverse,
                      const Damping& damping) {
  const auto &a = inverse.matrix(shape, 0), &g = inverse.matrix(shape, 1);
  if (shape.inverse.method != Method::eigen) return g.bmm(matrix).bmm(a);
  const Transformed v{transposed(g).bmm(matrix).bmm(a), {}};
  divide(shape, inverse, damping, v);
  return g.bmm(v.weight).bmm(transposed(a));
}

Transformed solve_separable(const LayerShape& shape, const Transformed& gradient, const LayerInverse& inverse,
                            const Damping& damping) {
  const auto &c = inverse.matrix(shape, 0), &k = inverse.matrix(shape, 1), &g = inverse.matrix(shape, 2);
  const auto left = [&](const at::Tensor& m, const at::Tensor& v) { return v.defined() ? m.bmm(v) : v; };
  if (shape.inverse.method != Method::eigen) {
    const auto v = into_factors(g.bmm(gradient.weight), c, k);
    return {transposed(v.view({v.size(0), v.size(1), k.size(1), c.size(1)})), left(g, gradient.bias)};
  }
  const auto g_t = transposed(g);
  const Transformed v{into_factors(g_t.bmm(gradient.weight), c, k), left(g_t, gradient.bias)};
  divide(shape, inverse, damping, v);
  return {g.bmm(out_of_factors(v.weight, transposed(c), transposed(k))), left(g, v.bias)};
}

}  // namespace

LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const LayerInverse& inverse,
                           const Damping& damping) {
  const auto dtype = inverse.held.front().scalar_type();
  const auto sizes = gradient.weight.sizes();
  auto weight = gradient.weight.to(dtype).reshape({shape.groups, shape.out / shape.groups, -1});
  const auto bias = shape.bias ? gradient.bias.to(dtype).view({shape.groups, -1, 1}) : at::Tensor();
  if (shape.separable) {
    const auto v = solve_separable(shape, {weight, bias}, inverse, damping);
    return {v.weight.reshape(sizes), shape.bias ? v.bias.flatten() : at::Tensor()};
  }
  if (shape.bias) weight = at::cat({weight, bias}, 2);
  const auto v = solve_full(shape, weight, inverse, damping);
  if (!shape.bias) return {v.view(sizes), {}};
  const int64_t last = v.size(2) - 1;
  return {v.narrow(2, 0, last).reshape(sizes), v.select(2, last).flatten()};
}

}  // namespace spillway::kfac
