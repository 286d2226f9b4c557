/// What factors, eigenbases and gradients cost on the wire. LibTorch-free.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/assignment.h"

namespace spillway::kfac {

/// Layers [begin, end) whose new factors travel together, and their elements.
struct FactorBucket {
  size_t begin = 0;
  size_t end = 0;
  int64_t elements = 0;
  bool operator==(const FactorBucket&) const = default;
};

/// Σ count·side·(side+1)/2: a symmetric factor travels as one triangle.
int64_t packed_elements(const LayerShape& layer);
int64_t bytes_of(FactorDtype dtype);
/// The same with what else travels with a layer: in float32 its positions and samples, two elements behind its
/// triangles.
int64_t sent_elements(const LayerShape& layer, FactorDtype dtype);

/// The layers in order, cut into buckets of at most 8 MiB or one larger layer; layers whose factors are reduced in
/// another way are not mixed. Layers whose factors do not travel (dp, a single rank) are in none.
std::vector<FactorBucket> factor_buckets(const std::vector<LayerShape>& layers,
                                         const std::vector<Assignment>& assignments, FactorDtype dtype);

/// Bytes of tensors that enter one rank, by what carries them: what a plan weighs against FactorBytes.
struct FactorTraffic {
  int64_t factors = 0;     ///< in each factor step
  int64_t eigenbases = 0;  ///< received from owners, in each decomposition
  int64_t gradients = 0;   ///< in every step: the gradient and its product with the original one, and all products' sum
  bool operator==(const FactorTraffic&) const = default;
};

/// For every rank, exact to the byte where all ranks share a host; across hosts factors go by levels, and float32 sends
/// less between them. Not counted: agreements, 80 bytes a call, and what 16 bits need besides, 8 bytes a factor. Of a
/// triangle of n elements over W ranks, averaging receives 2(W−1)/W·n on each, and reducing to its owner (W−1)·n there
/// and nothing elsewhere: (W−1)/W·n a rank where ownership is even. Decompositions and gradients travel as float32.
std::vector<FactorTraffic> traffic_per_rank(const std::vector<LayerShape>& layers,
                                            const std::vector<Assignment>& assignments,
                                            FactorDtype dtype = FactorDtype::fp32);

}  // namespace spillway::kfac
