#include "kfac/inverse/layer_inverse.h"

#include <ATen/ATen.h>

#include <limits>

#include "core/category.h"
#include "kfac/inverse/truncated_eigenbasis.h"

namespace spillway::kfac {
namespace {

// Returns the place of factor `f`'s matrix among inverse_tensors().
size_t place(const LayerShape& shape, size_t f) {
  const bool values = shape.inverse.method == Method::eigen && !shape.inverse.precompute_outer;
  const bool diagonal = shape.inverse.method != Method::eigen && shape.storage != FactorDtype::fp32;
  return values || diagonal ? 2 * f : f;
}

at::Tensor traces(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).sum(-1);
}

// Returns each layer's mean over `x`, whose first dimension has the layers one behind the other: 0-dim, or [layers].
at::Tensor mean_of_layers(const at::Tensor& x, int64_t layers) {
  return layers == 1 ? x.mean() : x.reshape({layers, -1}).mean(1);
}

// Returns the mean over `values` [count, factor.values()] of which a tail stands for all eigenvalues that are left out.
at::Tensor mean_value(const FactorShape& factor, const at::Tensor& values, int64_t layers) {
  if (!factor.is_truncated()) return mean_of_layers(values, layers);
  const auto kept = values.narrow(1, 0, factor.rank).sum(1), tail = values.select(1, factor.rank);
  return mean_of_layers(kept.add(tail, factor.side - factor.rank), layers) / factor.side;
}

// Adds γ, 0-dim or [layers], to `curvature` [groups of all layers, …], which is zero where there is none.
at::Tensor add_gamma(const LayerShape& shape, const at::Tensor& curvature, const at::Tensor& gamma) {
  if (shape.layers == 1) return curvature.add_(gamma);
  curvature.view({shape.layers, -1}).add_(gamma.unsqueeze(1));
  return curvature;
}

// Returns the damping of a bias that is apart from a weight whose mean curvature is `of_weight`; that of the bias is
// `of_bias`. A weight without curvature says nothing of the bias.
Damping for_bias(Damping damping, const at::Tensor& of_weight, const at::Tensor& of_bias) {
  if (!damping.curvature.defined()) return damping;
  const auto ratio = of_bias / of_weight.clamp_min(std::numeric_limits<float>::min());
  damping.curvature = at::where(of_weight.gt(0), damping.curvature * ratio, of_bias);
  return damping;
}

// Returns the values of a separable layer's K, divided by its trace; undefined for other layers.
at::Tensor offset_values(const LayerShape& shape, const std::vector<at::Tensor>& values) {
  return shape.separable ? values[1] / values[1].sum(-1, true).clamp_min(std::numeric_limits<float>::min())
                         : at::Tensor();
}

// Returns the mean curvature of a layer whose G has the mean `g_mean`; `k` are its offset_values().
at::Tensor product_of_means(const LayerShape& shape, const std::vector<at::Tensor>& values, const at::Tensor& k,
                            const at::Tensor& g_mean) {
  const auto a_mean = mean_value(shape.factors()[0], values[0], shape.layers);
  return g_mean * (k.defined() ? mean_of_layers(k, shape.layers) * a_mean : a_mean);
}

}  // namespace

at::Tensor gamma_of(const at::Tensor& mean_curvatures, const Damping& damping) {
  const auto& curvatures = damping.curvature.defined() ? damping.curvature : mean_curvatures;
  const auto value =
      damping.absolute ? at::full_like(mean_curvatures, *damping.absolute) : curvatures * damping.relative;
  return at::where(mean_curvatures.gt(0), value, 1);
}

at::Tensor mean_curvature(const LayerShape& shape, const std::vector<at::Tensor>& values) {
  const auto g_mean = mean_value(shape.factors().back(), values.back(), shape.layers);
  return product_of_means(shape, values, offset_values(shape, values), g_mean);
}

at::Tensor mean_eigenvalue(const FactorShape& shape, const at::Tensor& traces) {
  const auto counted = shape.role == FactorRole::offsets ? traces.gt(0).to(traces.scalar_type()) : traces;
  return counted.mean(-1) / shape.side;
}

LayerInverse LayerInverse::identity(const LayerShape& shape, const at::TensorOptions& like) {
  CategoryScope scope(Category::eigenbases);
  LayerInverse inverse;
  const auto type = storage_type(shape.storage, like.dtype().toScalarType());
  for (const auto& tensor : inverse_tensors(shape))
    inverse.held.push_back(at::zeros(tensor.sizes, tensor.in_storage ? like.dtype(type) : like));
  for (size_t f = 0; f < shape.factors().size(); ++f) {
    const auto [entries, diagonal] = inverse.stored(shape, f);
    entries.diagonal(0, -2, -1).fill_(1);
    if (diagonal.defined()) diagonal.fill_(1);
  }
  if (shape.inverse.precompute_outer) inverse.held.back().fill_(1);
  return inverse;
}

StoredMatrix LayerInverse::stored(const LayerShape& shape, size_t f) const {
  const size_t at = place(shape, f);
  const bool diagonal = shape.inverse.method != Method::eigen && shape.storage != FactorDtype::fp32;
  return {held[at], diagonal ? held[at + 1] : at::Tensor()};
}

at::Tensor LayerInverse::matrix(const LayerShape& shape, size_t f) const {
  // The last tensor (values, a reciprocal or a diagonal) is of the state's own type.
  return stored(shape, f).load().to(held.back().scalar_type());
}

std::vector<at::Tensor> LayerInverse::values(const LayerShape& shape) const {
  std::vector<at::Tensor> all;
  for (size_t f = 0; f < shape.factors().size(); ++f) all.push_back(held[place(shape, f) + 1]);
  return all;
}

Eigenbasis LayerInverse::basis(const LayerShape& shape, size_t f) {
  const auto& vectors = held[place(shape, f)];
  if (!shape.inverse.precompute_outer) return {vectors, held[place(shape, f) + 1]};
  CategoryScope scope(Category::eigenbases);
  fresh_values.resize(shape.factors().size());
  if (!fresh_values[f].defined())
    fresh_values[f] = at::zeros({vectors.size(0), shape.factors()[f].values()}, held.back().options());
  return {vectors, fresh_values[f]};
}

at::Tensor denominators(const LayerShape& shape, const std::vector<at::Tensor>& values, const Damping& damping) {
  const auto g = values.back().view({shape.groups, -1}), k = offset_values(shape, values);
  const auto a =
      k.defined() ? (k.unsqueeze(2) * values[0].unsqueeze(1)).flatten(1) : values[0].view({shape.groups, -1});
  const auto curvature = g.unsqueeze(2) * a.unsqueeze(1);
  if (damping.gamma.defined()) return add_gamma(shape, curvature, damping.gamma);
  const auto g_mean = mean_value(shape.factors().back(), values.back(), shape.layers);
  const auto mean = product_of_means(shape, values, k, g_mean);
  auto weight = add_gamma(shape, curvature, gamma_of(mean, damping));
  if (!shape.bias_apart()) return weight;
  const auto gamma = gamma_of(g_mean, for_bias(damping, mean, g_mean));
  return at::cat({weight, add_gamma(shape, g.unsqueeze(2).clone(), gamma)}, 2);
}

void rescale_fresh_values(const at::Tensor& factor, LayerInverse& inverse, const LayerShape& shape, size_t f) {
  if (!shape.inverse.precompute_outer) return;
  const auto basis = inverse.basis(shape, f);
  const auto vectors = inverse.matrix(shape, f);
  basis.values.copy_(rayleigh_quotients(factor, vectors));
}

void form_reciprocal(LayerInverse& inverse, const LayerShape& shape, const Damping& damping) {
  inverse.held.back().copy_(denominators(shape, inverse.fresh_values, damping).reciprocal_());
  inverse.fresh_values.clear();
}

at::Tensor damped_factor(const LayerShape& shape, const std::vector<at::Tensor>& factors, size_t f,
                         const Damping& damping) {
  const auto shapes = shape.factors();
  const auto mean = mean_eigenvalue(shapes[f], traces(factors[f]));
  auto product = at::ones_like(mean);
  for (size_t i = 0; i < factors.size(); ++i) product = product * mean_eigenvalue(shapes[i], traces(factors[i]));
  const auto seen = product.gt(0);
  auto d = gamma_of(product, damping);
  // d_F = m_F (γ / Π m)^(1/n)
  if (shape.inverse.method == Method::pi)
    d = at::where(seen, mean * (d / product).pow(1.0 / static_cast<double>(factors.size())), d);
  auto matrix = factors[f] * seen;
  if (shapes[f].role == FactorRole::offsets)
    matrix.div_(traces(factors[f]).clamp_min(std::numeric_limits<float>::min()).view({-1, 1, 1}));
  matrix.diagonal(0, -2, -1).add_(d);
  return matrix;
}

void keep_solved(const LayerInverse& inverse, const LayerShape& shape, size_t f, const at::Tensor& fresh,
                 const at::Tensor& solved, const at::Tensor& failed) {
  const auto stored = inverse.stored(shape, f);
  stored.store(at::where(solved.view({-1, 1, 1}), fresh, stored.load()));
  failed.add_(solved.logical_not().any());
}

void invert_factor(const LayerInverse& inverse, const LayerShape& shape, const std::vector<at::Tensor>& factors,
                   size_t f, const Damping& damping, const at::Tensor& failed) {
  const auto [root, info] = at::linalg_cholesky_ex(damped_factor(shape, factors, f, damping));
  // LibTorch throws for a root with a zero on its diagonal, which a failed one may have.
  root.diagonal(0, -2, -1).masked_fill_(info.ne(0).unsqueeze(1), 1);
  const auto fresh = at::cholesky_inverse(root);
  keep_solved(inverse, shape, f, fresh, info.eq(0).logical_and(at::isfinite(fresh.sum({1, 2}))), failed);
}

}  // namespace spillway::kfac
