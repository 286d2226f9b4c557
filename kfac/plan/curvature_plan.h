/// The choice of every layer's rows, rank and steps, so that K-FAC takes a given share of a step. LibTorch-free.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/plan/layer_curvature.h"
#include "kfac/plan/layer_shape.h"
#include "kfac/plan/options.h"

namespace spillway::kfac {

/// Counted work. Its unit is an operation of a large matrix product; slower operations count as often as they take
/// longer.
struct CurvatureWork {
  double factors = 0;          ///< sums of outer products, in each update
  double decomposition = 0;    ///< in each update
  double preconditioning = 0;  ///< in each step
  /// Returns the mean of a step when an update is of every `interval`-th step.
  double per_step(int64_t interval) const {
    return (factors + decomposition) / static_cast<double>(interval) + preconditioning;
  }
};

/// Returns the work of one layer with `positions` rows a step. The constants are those of two cores of an AMD EPYC with
/// AVX-512: narrow products run at half the rate of large ones, QR at a quarter, eigensolvers as DecompositionCosts
/// says.
CurvatureWork curvature_work(const LayerShape& layer, int64_t positions, const LayerCurvature& curvature);

/// Returns 6 · positions · weights, the products of forward and backward.
double first_order_work(const LayerShape& layer, int64_t positions);

/// The inputs of plan_curvature().
struct CurvatureInputs {
  std::vector<LayerShape> layers;
  std::vector<int64_t> positions;  ///< rows of each layer in one step of one rank
  int64_t world = 1;               ///< ranks, over which decompositions are spread evenly
  double time_share = 0.2;         ///< largest work of K-FAC, as a share of first_order_work(), (0, 1]
};

/// The chosen curvature of every layer.
struct CurvaturePlan {
  std::vector<LayerCurvature> layers;
  double time_share = 0;  ///< work of K-FAC, as a share of first_order_work()
};

/// Returns the plan under which K-FAC's work is at most `time_share` of the first-order work, or the plan of least work
/// where none is. It begins with `options`: their samples, rank and factor_interval. While the work is too large, it
/// takes the cut that saves most:
///   rows of convolutions and ranks first, halved, where they are `auto`: neighboring positions tell the same, while
///     the rows of a Linear layer are samples, of which none can be spared,
///   intervals last, doubled up to kMaxStretch times, because old curvature costs more steps than it saves.
/// At the end the layers' slots spread the work of updates evenly over the steps, the longest work first. The result
/// depends on counted work alone, so it is the same on every rank, machine and run. Cost: microseconds. Throws
/// BadRequest for a share outside (0, 1], for intervals that change, and for options that layer_curvature does not go
/// with.
CurvaturePlan plan_curvature(const CurvatureInputs& inputs, const KfacOptions& options);

/// The most that an interval is stretched.
inline constexpr int64_t kMaxStretch = 4;

}  // namespace spillway::kfac
