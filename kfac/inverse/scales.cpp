#include "kfac/inverse/scales.h"

#include <ATen/ATen.h>

namespace spillway::kfac {
namespace {

// Returns the scales of pairs of eigenvalues, of which those of G have a tail behind the first `of_g`, and those of A
// behind the first `of_a`.
Scales parts_of(const at::Tensor& pairs, int64_t of_g, int64_t of_a) {
  const bool g_has_tail = of_g < pairs.size(2), a_has_tail = of_a < pairs.size(4);
  const auto tail_of_a = [&] { return pairs.narrow(4, of_a, 1); };
  const auto tail_of_g = [&] { return pairs.narrow(2, of_g, 1).narrow(4, 0, of_a); };
  Scales scales{.kept = pairs.narrow(2, 0, of_g).narrow(4, 0, of_a)};
  if (g_has_tail && a_has_tail) {
    scales.of_all = tail_of_a().narrow(2, of_g, 1);
    scales.by_g = tail_of_a().narrow(2, 0, of_g) - scales.of_all;
    scales.by_a = tail_of_g() - scales.of_all;
    scales.kept = scales.kept - scales.by_g - tail_of_g();
  } else if (a_has_tail) {
    scales.by_g = tail_of_a();
    scales.kept = scales.kept - scales.by_g;
  } else if (g_has_tail) {
    scales.by_a = tail_of_g();
    scales.kept = scales.kept - scales.by_a;
  }
  return scales;
}

}  // namespace

std::vector<at::Tensor*> Scales::tensors() {
  std::vector<at::Tensor*> all;
  for (at::Tensor* tensor : {&kept, &by_g, &by_a, &of_all})
    if (tensor->defined()) all.push_back(tensor);
  return all;
}

std::vector<at::Tensor*> LayerScales::tensors() {
  std::vector<at::Tensor*> all = weight.tensors();
  for (at::Tensor* tensor : bias.tensors()) all.push_back(tensor);
  return all;
}

LayerScales scales_of(const LayerShape& shape, const LayerInverse& inverse, const Damping& damping) {
  if (shape.inverse.method != Method::eigen) return {};
  const auto all = shape.inverse.precompute_outer ? inverse.held.back()
                                                  : denominators(shape, inverse.values(shape), damping).reciprocal_();
  const auto factors = shape.factors();
  const FactorShape &a = factors.front(), &g = factors.back();
  const int64_t rows = g.count / shape.groups, columns = shape.separable ? factors[1].side : a.count / shape.groups;
  const int64_t of_weight = all.size(2) - (shape.bias_apart() ? 1 : 0);
  const auto pairs = all.narrow(2, 0, of_weight).reshape({shape.groups, rows, -1, columns, of_weight / columns});
  LayerScales scales{.weight = parts_of(pairs, g.rank, a.rank)};
  if (shape.bias_apart())
    scales.bias = parts_of(all.narrow(2, of_weight, 1).reshape({shape.groups, rows, -1, 1, 1}), g.rank, 1);
  return scales;
}

}  // namespace spillway::kfac
