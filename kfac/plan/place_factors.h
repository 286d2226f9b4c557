/// The placement of factors on the ranks that decompose them. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// Returns the cost of decomposing each factor of each layer under `placement`. It is count·side³ for lpt_time, and for
/// round_robin, which does not read it. It is count·side² for lpt_memory. For measured it is `seconds(side, count)`,
/// scaled for truncated bases by their share of a full basis's operations. Throws BadRequest where measured seconds are
/// not above 0.
std::vector<std::vector<double>> decomposition_costs(const std::vector<LayerShape>& layers, Placement placement,
                                                     const std::function<double(int64_t, int64_t)>& seconds = nullptr);

/// Places the costliest job first, each job on the rank with the least load so far. Ties go to the earlier job and the
/// lower rank. The makespan is at most 4/3 − 1/(3·world) of the optimum (Graham 1969). Cost: O(jobs · world).
std::vector<int64_t> place_longest_first(const std::vector<double>& costs, int64_t world);

/// Returns the rank of every factor, by layer. `together` puts all factors of a layer on one rank. round_robin places
/// in turn. It goes by layer, layer i to rank i mod world; it goes by factor when `together` is false and world >
/// layers. The other placements go by cost.
std::vector<std::vector<int64_t>> place_factors(const std::vector<std::vector<double>>& costs, int64_t world,
                                                Placement placement, bool together);

/// Factor number `factor` of layer number `layer`.
struct FactorId {
  size_t layer, factor;
  bool operator==(const FactorId&) const = default;
};
/// Groups `factors` of `layers` by side and rank, to be decomposed together. A group has at most as many elements as
/// the largest factor, so that no group needs more memory than that factor does alone.
std::vector<std::vector<FactorId>> groups_of_one_side(const std::vector<LayerShape>& layers,
                                                      const std::vector<FactorId>& factors);

/// Returns `seconds` at the sides and counts that occur in `layers`, in a fixed order. Ranks agree on this table before
/// they place factors.
std::vector<double> seconds_table(const std::vector<LayerShape>& layers,
                                  const std::function<double(int64_t, int64_t)>& seconds);
/// Returns the function that answers from such a table, for those sides and counts only.
std::function<double(int64_t, int64_t)> seconds_from(const std::vector<LayerShape>& layers, std::vector<double> table);

}  // namespace spillway::kfac
