#include "kfac/comm/reduce_factors.h"

#include <ATen/ATen.h>

#include "core/category.h"
#include "kfac/factors/packed_triangles.h"

namespace spillway::kfac {
namespace {

void reduce(const at::Tensor& packed, const BucketParts& parts, FactorScope home, const RankExchange& exchange,
            ddl::Reduction reduction) {
  if (home == FactorScope::everywhere)
    exchange.reduce_(packed, reduction);
  else
    exchange.reduce_at_(packed, parts.ends, parts.homes, reduction);
}

at::Tensor staging(int64_t elements, at::ScalarType type, const at::Tensor& like) {
  CategoryScope scope(Category::staging);
  return at::empty({elements}, like.options().dtype(type));
}

// Visits each layer with its part of `packed` and the `extra` elements behind it.
template <class Visit>
void for_each_layer(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, const at::Tensor& packed,
                    int64_t extra, const Visit& visit) {
  int64_t begin = 0;
  for (size_t l : bucket.layers) {
    const int64_t size = packed_elements(layers[l].staged());
    visit(l, packed.narrow(0, begin, size), packed.narrow(0, begin + size, extra));
    begin += size + extra;
  }
}

std::vector<at::Tensor> matrices_of(const FactorBucket& bucket, const std::vector<LayerFactors>& layers) {
  std::vector<at::Tensor> matrices;
  for (size_t l : bucket.layers) matrices.insert(matrices.end(), layers[l].staged().begin(), layers[l].staged().end());
  return matrices;
}

void reduce_small(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                  const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                  const RankExchange& exchange) {
  const SeenFactors seen(bucket, layers, batch);
  const auto scalings = seen.scalings(exchange.gather(seen.numbers()), exchange.rank());
  const auto matrices = matrices_of(bucket, layers);
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i].mul_(scalings[i].before);
  const auto packed = staging(bucket.elements, scalar_type(dtype), matrices.front());
  pack_triangles(matrices, packed);
  reduce(packed, parts_of(bucket, layers, assignments, dtype), assignments[bucket.layers.front()].home, exchange,
         ddl::Reduction::average);
  unpack_scaled(bucket, layers, assignments, exchange.rank(), packed, scalings);
}

}  // namespace

at::ScalarType scalar_type(FactorDtype dtype) {
  if (dtype == FactorDtype::bf16) return at::kBFloat16;
  return dtype == FactorDtype::fp16 ? at::kHalf : at::kFloat;
}

BucketParts parts_of(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, FactorDtype dtype) {
  BucketParts parts;
  int64_t end = 0;
  for (size_t l : bucket.layers) {
    end += sent_elements(layers[l].shape(), dtype);
    parts.ends.push_back(end);
    parts.homes.push_back(assignments[l].owners.front());
  }
  return parts;
}

void pack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch,
                   const at::Tensor& packed) {
  for_each_layer(bucket, layers, packed, 2, [&](size_t l, const at::Tensor& triangles, const at::Tensor& counts) {
    const auto& factors = layers[l].staged();
    const auto positions = static_cast<double>(layers[l].positions());
    for (size_t f = 0; f < factors.size(); ++f)
      factors[f].mul_(f + 1 < factors.size() ? positions : static_cast<double>(batch));
    pack_triangles(factors, triangles);
    counts.select(0, 0).fill_(positions);
    counts.select(0, 1).fill_(batch);
  });
}

void unpack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed) {
  for_each_layer(bucket, layers, packed, 2, [&](size_t l, const at::Tensor& triangles, const at::Tensor& counts) {
    if (!assignments[l].holds_factors(rank)) return;
    const auto& factors = layers[l].staged();
    unpack_triangles(triangles, factors);
    const auto shares = at::where(counts.gt(0), counts.reciprocal(), 0);
    for (size_t f = 0; f < factors.size(); ++f) factors[f].mul_(shares[f + 1 < factors.size() ? 0 : 1]);
  });
}

void pack_unscaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, const at::Tensor& packed) {
  pack_triangles(matrices_of(bucket, layers), packed);
}

void unpack_scaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                   const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed,
                   const std::vector<Scaling>& scalings) {
  auto scaling = scalings.begin();
  for_each_layer(bucket, layers, packed, 0, [&](size_t l, const at::Tensor& triangles, const at::Tensor&) {
    const auto& factors = layers[l].staged();
    if (assignments[l].holds_factors(rank)) {
      unpack_triangles(triangles, factors);
      for (size_t f = 0; f < factors.size(); ++f) factors[f].mul_(scaling[f].after);
    }
    scaling += factors.size();
  });
}

void reduce_factors(const FactorBucket& bucket, std::vector<LayerFactors>& layers,
                    const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                    const RankExchange& exchange) {
  if (dtype != FactorDtype::fp32) return reduce_small(bucket, layers, assignments, batch, dtype, exchange);
  const auto packed = staging(bucket.elements, at::kFloat, layers[bucket.layers.front()].staged().front());
  pack_weighted(bucket, layers, batch, packed);
  reduce(packed, parts_of(bucket, layers, assignments, dtype), assignments[bucket.layers.front()].home, exchange,
         ddl::Reduction::sum);
  unpack_weighted(bucket, layers, assignments, exchange.rank(), packed);
}

}  // namespace spillway::kfac
