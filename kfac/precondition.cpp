#include "kfac/precondition.h"

#include <ATen/ATen.h>

#include <limits>

namespace spillway::kfac {
namespace {

at::Tensor transposed(const at::Tensor& matrices) {
  return matrices.transpose(-2, -1);
}

// V2 = V1 / (curvature + γ); a layer without curvature is divided by one. Overwrites both.
at::Tensor divide(at::Tensor v1, at::Tensor curvature, const at::Tensor& mean_curvature, const Damping& damping) {
  const auto gamma =
      damping.absolute ? at::full_like(mean_curvature, *damping.absolute) : mean_curvature * damping.relative;
  const auto seen = mean_curvature.gt(0);
  curvature.mul_(seen).add_(at::where(seen, gamma, at::ones_like(gamma)));
  return v1.div_(curvature);
}

LayerGradient precondition_full(const LayerShape& shape, const LayerGradient& gradient, const Eigenbasis& a,
                                const Eigenbasis& g, const Damping& damping) {
  auto matrix = gradient.weight.reshape({shape.groups, shape.out / shape.groups, -1});
  if (shape.bias) matrix = at::cat({matrix, gradient.bias.view({shape.groups, -1, 1})}, 2);
  // V1 = Q_Gᵀ ∇ Q_A
  auto v = transposed(g.vectors).bmm(matrix).bmm(a.vectors);
  // V2 = V1 / (v_G v_Aᵀ + γ)
  v = divide(v, g.values.unsqueeze(2) * a.values.unsqueeze(1), g.values.mean() * a.values.mean(), damping);
  // V = Q_G V2 Q_Aᵀ
  v = g.vectors.bmm(v).bmm(transposed(a.vectors));
  if (!shape.bias) return {v.view(gradient.weight.sizes()), {}};
  const int64_t last = v.size(2) - 1;
  return {v.narrow(2, 0, last).reshape(gradient.weight.sizes()), v.select(2, last).flatten()};
}

at::Tensor precondition_bias(const LayerShape& shape, const at::Tensor& gradient, const Eigenbasis& g,
                             const Damping& damping) {
  // V_b = Q_G (Q_Gᵀ ∇_b / (v_G + γ_b))
  auto v = transposed(g.vectors).bmm(gradient.view({shape.groups, -1, 1}));
  v = divide(v, g.values.unsqueeze(2).clone(), g.values.mean(), damping);
  return g.vectors.bmm(v).flatten();
}

LayerGradient precondition_separable(const LayerShape& shape, const LayerGradient& gradient,
                                     const std::vector<Eigenbasis>& bases, const Damping& damping) {
  const auto &c = bases[0], &k = bases[1], &g = bases[2];
  const int64_t groups = shape.groups, out = shape.out / groups, in = shape.in / groups, volume = shape.kernel_volume();
  const auto k_values = k.values / k.values.sum(-1, true).clamp_min(std::numeric_limits<float>::min());
  // V1 = Q_Gᵀ ∇ (Q_C ⊗ Q_K), one factor after the other, as [out, offsets, channels]
  auto v = transposed(g.vectors).bmm(gradient.weight.reshape({groups, out, in * volume}));
  v = v.view({groups, out * in, volume}).bmm(k.vectors).view({groups, out, in, volume});
  v = transposed(v).reshape({groups, out * volume, in}).bmm(c.vectors).view({groups, out, volume, in});
  // V2 = V1 / (v_G ⊗ v_K ⊗ v_C + γ)
  const auto kc = k_values.unsqueeze(2) * c.values.unsqueeze(1);
  v = divide(v, g.values.view({groups, out, 1, 1}) * kc.unsqueeze(1),
             g.values.mean() * k_values.mean() * c.values.mean(), damping);
  // V = Q_G V2 (Q_C ⊗ Q_K)ᵀ
  v = v.view({groups, out * volume, in}).bmm(transposed(c.vectors)).view({groups, out, volume, in});
  v = transposed(v).reshape({groups, out * in, volume}).bmm(transposed(k.vectors)).view({groups, out, in * volume});
  LayerGradient result{g.vectors.bmm(v).view(gradient.weight.sizes()), {}};
  if (shape.bias) result.bias = precondition_bias(shape, gradient.bias, g, damping);
  return result;
}

}  // namespace

LayerGradient precondition(const LayerShape& shape, const LayerGradient& gradient, const std::vector<Eigenbasis>& bases,
                           const Damping& damping) {
  const auto dtype = bases.front().vectors.scalar_type();
  const LayerGradient exact{gradient.weight.to(dtype), shape.bias ? gradient.bias.to(dtype) : at::Tensor()};
  if (shape.separable) return precondition_separable(shape, exact, bases, damping);
  return precondition_full(shape, exact, bases[0], bases[1], damping);
}

}  // namespace spillway::kfac
