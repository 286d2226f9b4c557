/// The bytes that ranks exchange for factors, eigenbases and gradients. LibTorch-free.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/assignment.h"

namespace spillway::kfac {

/// Layers whose new factors travel together, in ascending order, and the number of their elements.
struct FactorBucket {
  std::vector<size_t> layers;
  int64_t elements = 0;
  bool operator==(const FactorBucket&) const = default;
};

/// Returns Σ count·side·(side+1)/2, because a symmetric factor travels as one triangle.
int64_t packed_elements(const LayerShape& layer);
int64_t bytes_of(FactorDtype dtype);
/// Returns packed_elements() plus the numbers that travel with a layer. In float32 these are its positions and samples,
/// two elements behind its triangles.
int64_t sent_elements(const LayerShape& layer, FactorDtype dtype);

/// Cuts the layers `among`, in order, into buckets of at most 8 MiB or one larger layer. A bucket never mixes layers
/// whose factors are reduced in different ways. Layers whose factors do not travel (dp, a single rank) are in no
/// bucket.
std::vector<FactorBucket> factor_buckets(const std::vector<LayerShape>& layers,
                                         const std::vector<Assignment>& assignments, FactorDtype dtype,
                                         const std::vector<size_t>& among);
/// Returns the buckets of all layers.
std::vector<FactorBucket> factor_buckets(const std::vector<LayerShape>& layers,
                                         const std::vector<Assignment>& assignments, FactorDtype dtype);

/// Bytes of tensors that enter one rank, by the kind of exchange that carries them. A plan weighs them against
/// FactorBytes.
struct FactorTraffic {
  int64_t factors = 0;     ///< in each factor step
  int64_t eigenbases = 0;  ///< received from owners, in each decomposition
  int64_t gradients = 0;   ///< in every step: the gradients and the step's sums, of each layer and of all
  bool operator==(const FactorTraffic&) const = default;
};

/// Returns the FactorTraffic of every rank, exact to the byte where all ranks share a host. Across hosts factors are
/// reduced by levels, and float32 sends less between hosts. Not counted: agreements, 80 bytes a call, the numbers
/// that 16-bit types need besides, 8 bytes a factor, and DampingScope::network's, 24·(W−1)/W bytes a layer in each
/// decomposition. Averaging a triangle of n elements over W ranks receives 2(W−1)/W·n on each rank. Reducing the
/// triangle to its owner receives (W−1)·n on the owner and nothing elsewhere. That is (W−1)/W·n a rank where ownership
/// is even. Decompositions and gradients travel as float32.
std::vector<FactorTraffic> traffic_per_rank(const std::vector<LayerShape>& layers,
                                            const std::vector<Assignment>& assignments,
                                            FactorDtype dtype = FactorDtype::fp32);

}  // namespace spillway::kfac
