#include "kfac/factor_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/category.h"
#include "kfac/triangles.h"

namespace spillway::kfac {
namespace {

at::ScalarType scalar_type(FactorDtype dtype) {
  if (dtype == FactorDtype::bf16) return at::kBFloat16;
  return dtype == FactorDtype::fp16 ? at::kHalf : at::kFloat;
}

// What this rank does to one factor before it travels and after.
struct Scaling {
  double before = 1;
  double after = 1;
};

// The 16-bit way: what the ranks saw decides how each scales its factors.
class SmallTypes {
 public:
  SmallTypes(const FactorBucket& bucket, const std::vector<LayerFactors>& layers) : bucket_(bucket), layers_(layers) {
    for (size_t l = bucket.begin; l < bucket.end; ++l)
      matrices_.insert(matrices_.end(), layers[l].staged().begin(), layers[l].staged().end());
  }

  // Samples, positions by layer, and the largest entry by factor: none of a
  // Gram matrix exceeds its largest diagonal one.
  std::vector<double> seen(int64_t batch) const {
    std::vector<double> numbers{static_cast<double>(batch)};
    for (size_t l = bucket_.begin; l < bucket_.end; ++l) numbers.push_back(static_cast<double>(layers_[l].positions()));
    std::vector<at::Tensor> largest;
    for (const auto& matrix : matrices_) largest.push_back(matrix.diagonal(0, -2, -1).max());
    const auto on_host = at::stack(largest).to(at::kCPU, at::kDouble);
    numbers.insert(numbers.end(), on_host.const_data_ptr<double>(), on_host.const_data_ptr<double>() + on_host.numel());
    return numbers;
  }

  // Of every factor, for the mean over all ranks: W·n_r/n times rank r's is
  // what it sums.
  std::vector<Scaling> scalings(const std::vector<std::vector<double>>& seen, size_t rank) const {
    const auto weight = [&](size_t i, size_t r) {
      double all = 0;
      for (const auto& numbers : seen) all += numbers[i];
      return all > 0 ? static_cast<double>(seen.size()) * seen[r][i] / all : 0.0;
    };
    std::vector<Scaling> scalings;
    const size_t layers = bucket_.end - bucket_.begin;
    for (size_t l = 0; l < layers; ++l)
      for (size_t f = 0, factors = layers_[bucket_.begin + l].staged().size(); f < factors; ++f) {
        const size_t counted = f + 1 == factors ? 0 : 1 + l;  // G by samples, the others by positions
        double largest = 0;
        for (size_t r = 0; r < seen.size(); ++r)
          largest = std::max(largest, weight(counted, r) * seen[r][1 + layers + scalings.size()]);
        const double scale = power_above(largest);
        scalings.push_back({weight(counted, rank) / scale, scale});
      }
    return scalings;
  }

  const std::vector<at::Tensor>& matrices() const { return matrices_; }

 private:
  // Within what float32 can be multiplied and divided by; 1 for nothing to
  // scale.
  static double power_above(double bound) {
    if (!(bound > 0) || !std::isfinite(bound)) return 1;
    return std::exp2(std::clamp(std::ceil(std::log2(bound)), -120.0, 120.0));
  }

  const FactorBucket& bucket_;
  const std::vector<LayerFactors>& layers_;
  std::vector<at::Tensor> matrices_;
};

void reduce(const at::Tensor& packed, const BucketParts& parts, FactorHome home, const Exchange& exchange,
            ddl::Reduction reduction) {
  if (home == FactorHome::everywhere)
    exchange.reduce_(packed, reduction);
  else
    exchange.reduce_at_(packed, parts.ends, parts.homes, reduction);
}

at::Tensor staging(int64_t elements, at::ScalarType type, const at::Tensor& like) {
  CategoryScope scope(Category::staging);
  return at::empty({elements}, like.options().dtype(type));
}

// Each layer and its part of `packed`.
template <class Visit>
void for_each_layer(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, const at::Tensor& packed,
                    int64_t extra, const Visit& visit) {
  int64_t begin = 0;
  for (size_t l = bucket.begin; l < bucket.end; ++l) {
    const int64_t size = packed_elements(layers[l].staged());
    visit(l, packed.narrow(0, begin, size), packed.narrow(0, begin + size, extra));
    begin += size + extra;
  }
}

void reduce_small(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                  const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                  const Exchange& exchange) {
  const SmallTypes small(bucket, layers);
  const auto& matrices = small.matrices();
  const auto scalings = small.scalings(exchange.gather(small.seen(batch)), static_cast<size_t>(exchange.rank()));
  for (size_t i = 0; i < matrices.size(); ++i)
    if (scalings[i].before != 1) matrices[i].mul_(scalings[i].before);
  const auto packed = staging(bucket.elements, scalar_type(dtype), matrices.front());
  pack_triangles(matrices, packed);
  reduce(packed, parts_of(bucket, layers, assignments, dtype), assignments[bucket.begin].home, exchange,
         ddl::Reduction::average);
  for_each_layer(bucket, layers, packed, 0, [&](size_t l, const at::Tensor& triangles, const at::Tensor&) {
    if (assignments[l].holds_factors(exchange.rank())) unpack_triangles(triangles, layers[l].staged());
  });
  for (size_t i = 0; i < matrices.size(); ++i)
    if (scalings[i].after != 1) matrices[i].mul_(scalings[i].after);
}

}  // namespace

BucketParts parts_of(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, FactorDtype dtype) {
  BucketParts parts;
  int64_t end = 0;
  for (size_t l = bucket.begin; l < bucket.end; ++l) {
    end += packed_elements(layers[l].staged()) + (dtype == FactorDtype::fp32 ? 2 : 0);
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

void reduce_factors(const FactorBucket& bucket, std::vector<LayerFactors>& layers,
                    const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                    const Exchange& exchange) {
  if (dtype != FactorDtype::fp32) return reduce_small(bucket, layers, assignments, batch, dtype, exchange);
  const auto packed = staging(bucket.elements, at::kFloat, layers[bucket.begin].staged().front());
  pack_weighted(bucket, layers, batch, packed);
  reduce(packed, parts_of(bucket, layers, assignments, dtype), assignments[bucket.begin].home, exchange,
         ddl::Reduction::sum);
  unpack_weighted(bucket, layers, assignments, exchange.rank(), packed);
}

}  // namespace spillway::kfac
