#include "kfac/plan/factor_traffic.h"

#include <algorithm>
#include <numeric>

namespace spillway::kfac {
namespace {

constexpr int64_t kBucketBytes = int64_t{8} << 20;
// The allreduce's chunk. Each chunk is cut into one piece per rank.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kStateBytes = 4;

// Returns the elements that `rank` receives of a vector that is averaged over all ranks. They are the other ranks'
// versions of its own piece of each chunk, and the finished pieces of all other ranks.
int64_t averaged_elements(int64_t count, int64_t rank, int64_t world, int64_t element_bytes) {
  int64_t received = 0;
  const int64_t chunk = kChunkBytes / element_bytes;
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t size = std::min(chunk, count - begin);
    const int64_t piece = size * (rank + 1) / world - size * rank / world;
    received += (world - 1) * piece + size - piece;
  }
  return received;
}

bool travels(const Assignment& layer) {
  return layer.world() > 1 && layer.home != FactorScope::own_batch;
}

}  // namespace

int64_t packed_elements(const LayerShape& layer) {
  int64_t sum = 0;
  for (const auto& factor : layer.factors()) sum += factor.count * factor.side * (factor.side + 1) / 2;
  return sum;
}

int64_t bytes_of(FactorDtype dtype) {
  return dtype == FactorDtype::fp32 ? 4 : 2;
}

int64_t sent_elements(const LayerShape& layer, FactorDtype dtype) {
  return packed_elements(layer) + (dtype == FactorDtype::fp32 ? 2 : 0);
}

std::vector<FactorBucket> factor_buckets(const std::vector<LayerShape>& layers,
                                         const std::vector<Assignment>& assignments, FactorDtype dtype,
                                         const std::vector<size_t>& among) {
  std::vector<FactorBucket> buckets;
  const int64_t most = kBucketBytes / bytes_of(dtype);
  for (size_t l : among) {
    if (!travels(assignments[l])) continue;
    const int64_t elements = sent_elements(layers[l], dtype);
    const bool joins = !buckets.empty() && buckets.back().elements + elements <= most &&
                       assignments[l].home == assignments[buckets.back().layers.back()].home;
    if (!joins) buckets.emplace_back();
    buckets.back().layers.push_back(l);
    buckets.back().elements += elements;
  }
  return buckets;
}

std::vector<FactorBucket> factor_buckets(const std::vector<LayerShape>& layers,
                                         const std::vector<Assignment>& assignments, FactorDtype dtype) {
  std::vector<size_t> all(layers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return factor_buckets(layers, assignments, dtype, all);
}

std::vector<FactorTraffic> traffic_per_rank(const std::vector<LayerShape>& layers,
                                            const std::vector<Assignment>& assignments, FactorDtype dtype) {
  if (assignments.empty()) return {};
  const int64_t world = assignments.front().world();
  std::vector<FactorTraffic> traffic(world);
  for (int64_t rank = 0; rank < world; ++rank) {
    auto& mine = traffic[rank];
    if (rank != 0 && !layers.empty()) mine.gradients += kStepSums * kStateBytes;  // rank 0's, for the clip
    for (const auto& bucket : factor_buckets(layers, assignments, dtype))
      if (assignments[bucket.layers.front()].home == FactorScope::everywhere)
        mine.factors += averaged_elements(bucket.elements, rank, world, bytes_of(dtype)) * bytes_of(dtype);
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto& layer = assignments[l];
      const auto factors = layers[l].factors();
      if (layer.home == FactorScope::owner && layer.owners.front() == rank)
        mine.factors += (world - 1) * sent_elements(layers[l], dtype) * bytes_of(dtype);
      if (!layer.is_worker(rank)) mine.gradients += (layers[l].gradient_elements() + kStepSums) * kStateBytes;
      for (const auto& tensor : inverse_tensors(layers[l]))
        if (layer.is_worker(rank) && layer.owners[tensor.factor] != rank)
          mine.eigenbases += bytes_of({tensor}, layers[l].storage, kStateBytes);
      // The owner of G forms the reciprocal from the values of every factor.
      for (size_t f = 0; layers[l].inverse.precompute_outer && f < factors.size(); ++f)
        if (layer.owners.back() == rank && layer.owners[f] != rank)
          mine.eigenbases += factors[f].count * factors[f].values() * kStateBytes;
    }
  }
  return traffic;
}

}  // namespace spillway::kfac
