/// One rank's new factors become the global batch's.
#pragma once
#include <vector>

#include "kfac/comm/factor_scaling.h"
#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/factors.h"
#include "kfac/plan/communication_volume.h"

namespace spillway::kfac {

/// Where the layers of a bucket lie in what travels, and who keeps them.
struct BucketParts {
  std::vector<int64_t> ends;
  std::vector<int64_t> homes;
};
BucketParts parts_of(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, FactorDtype dtype);

/// Averages the finished factors of `layers` in `bucket` over all ranks, in place, weighted by what each rank saw:
///   A = Σ_r (P_r/P) A_r,   G = Σ_r (B_r/B) G_r,   P = Σ_r P_r positions of the
///   layer, B = Σ_r B_r samples,
/// the factors of the global batch when its samples are split unevenly, too (with a mean loss on each rank, G_r = B_r Σ
/// g_r g_rᵀ and g = (B_r/B) g_r). Ranks that saw nothing weigh nothing; a layer that nobody saw gets zeros. In float32
/// P_r A_r, B_r G_r, P_r and B_r are summed, and divided afterwards. In 16 bits the ranks first tell each other what
/// they saw and their factors' largest entries; a factor travels weighted and divided by a 2^k ≥ the largest weighted
/// entry of any rank. Where only the owner keeps a layer, the others' factors are undefined afterwards. Every rank gets
/// the same bits. Workspace: the bucket, and a quarter of a matrix. Host synchronisation: with 16 bits one.
void reduce_factors(const FactorBucket& bucket, std::vector<LayerFactors>& layers,
                    const std::vector<Assignment>& assignments, int64_t batch, FactorDtype dtype,
                    const Exchange& exchange);

at::ScalarType scalar_type(FactorDtype dtype);

/// The two ends of the float32 way: overwrites the finished factors and fills `packed` [bucket.elements] …
void pack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, int64_t batch,
                   const at::Tensor& packed);
/// … and makes the factors that `rank` holds of the sums.
void unpack_weighted(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                     const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed);

/// The two ends of the 16-bit way, where what is packed is scaled in between: fills `packed` [bucket.elements] …
void pack_unscaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers, const at::Tensor& packed);
/// … and makes the factors that `rank` holds of the averages, of any floating type.
void unpack_scaled(const FactorBucket& bucket, const std::vector<LayerFactors>& layers,
                   const std::vector<Assignment>& assignments, int64_t rank, const at::Tensor& packed,
                   const std::vector<Scaling>& scalings);

}  // namespace spillway::kfac
