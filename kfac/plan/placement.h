/// Which rank decomposes which factor. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// The cost of decomposing each factor of each layer under `placement`: count·side³ (lpt_time, and round_robin, which
/// does not look at it), count·side² (lpt_memory), or `seconds(side, count)` (measured). Throws BadRequest where
/// measured seconds are not above 0.
std::vector<std::vector<double>> decomposition_costs(const std::vector<LayerShape>& layers, Placement placement,
                                                     const std::function<double(int64_t, int64_t)>& seconds = nullptr);

/// The costliest job first, each to the rank with the least so far; ties to the earlier job and the lower rank. The
/// makespan is at most 4/3 − 1/(3·world) of the optimum (Graham 1969). Cost: O(jobs · world).
std::vector<int64_t> place_longest_first(const std::vector<double>& costs, int64_t world);

/// The largest load of any rank.
double makespan(const std::vector<double>& costs, const std::vector<int64_t>& rank_of, int64_t world);

/// The rank of every factor, by layer. `together`: all factors of a layer on one rank. In turn (round_robin): by layer,
/// layer i to rank i mod world; by factor where they need not be together and world > layers. By cost otherwise.
std::vector<std::vector<int64_t>> place_factors(const std::vector<std::vector<double>>& costs, int64_t world,
                                                Placement placement, bool together);

/// Factor number `factor` of layer number `layer`.
struct FactorId {
  size_t layer, factor;
  bool operator==(const FactorId&) const = default;
};
/// `factors` of `layers` in groups of one side, to be decomposed together: each as long as it has no more elements than
/// the largest of the factors, so that no group needs more memory than one of them does alone.
std::vector<std::vector<FactorId>> groups_of_one_side(const std::vector<LayerShape>& layers,
                                                      const std::vector<FactorId>& factors);

/// `seconds` at the sides and counts that occur in `layers`, in a fixed order: what ranks agree on before they place.
std::vector<double> seconds_table(const std::vector<LayerShape>& layers,
                                  const std::function<double(int64_t, int64_t)>& seconds);
/// The function that answers from such a table; for those sides and counts only.
std::function<double(int64_t, int64_t)> seconds_from(const std::vector<LayerShape>& layers, std::vector<double> table);

}  // namespace spillway::kfac
