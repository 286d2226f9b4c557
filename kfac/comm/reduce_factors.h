/// The reduction that turns each rank's new factors into the global batch's.
#pragma once
#include <vector>

#include "kfac/comm/factor_scaling.h"
#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/factors.h"
#include "kfac/plan/factor_traffic.h"

namespace spillway::kfac {

/// The places of a bucket's layers in the vector that travels, and the ranks that keep the layers.
struct BucketParts {
  std::vector<int64_t> ends;
  std::vector<int64_t> homes;
};
BucketParts parts_of(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, FactorDtype dtype);

/// Averages the finished factors of `layers` in `bucket` over all ranks, in place, weighted by the positions and
/// samples that each rank saw:
///   A = Σ_r (P_r/P) A_r,   G = Σ_r (B_r/B) G_r,   P = Σ_r P_r positions of the
///   layer, B = Σ_r B_r samples.
/// These are the factors of the global batch, also when its samples are split unevenly. (With a mean loss on each rank,
/// G_r = B_r Σ g_r g_rᵀ and g = (B_r/B) g_r.) Ranks that saw nothing weigh nothing. A layer that no rank saw gets
/// zeros. In float32, P_r A_r, B_r G_r, P_r and B_r are summed, and the sums are divided afterwards. In 16 bits, the
/// ranks first tell each other their positions, their samples and their factors' largest entries. A factor then travels
/// weighted and divided by a 2^k ≥ the largest weighted entry of any rank. Where only the owner keeps a layer, the
/// other ranks' factors are undefined afterwards. Every rank gets the same bits. Workspace: the bucket, and a quarter
/// of a matrix. Synchronizes with the host once with 16 bits.
void reduce_factors(const FactorBucket& bucket, std::vector<LayerFactors>& layers,
                    const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                    const RankExchange& exchange);

at::ScalarType scalar_type(FactorDtype dtype);

/// Overwrites the finished factors and fills `packed` [bucket.elements] with weighted triangles. This is the part of
/// the float32 reduction before the sum over ranks.
void pack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch,
                   const at::Tensor& packed);
/// Makes the factors that `rank` holds from the sums in `packed`. This is the part of the float32 reduction after the
/// sum over ranks.
void unpack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed);

/// Fills `packed` [bucket.elements] with the triangles of the finished factors. This is the first part of the 16-bit
/// reduction; the packed triangles are scaled afterwards.
void pack_unscaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, const at::Tensor& packed);
/// Makes the factors that `rank` holds from the averages in `packed`, of any floating type. This is the last part of
/// the 16-bit reduction.
void unpack_scaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                   const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed,
                   const std::vector<Scaling>& scalings);

}  // namespace spillway::kfac
