/// The layers, options and ranks that the parts of a Kfac share, and the counts to which each part adds.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kfac/comm/rank_exchange.h"
#include "kfac/factors/layers.h"
#include "kfac/plan/assignment.h"
#include "kfac/plan/counters.h"
#include "kfac/plan/options.h"
#include "kfac/plan/place_factors.h"
#include "kfac/plan/update_cycle.h"

namespace spillway::kfac {

/// The layers of a Kfac, its options and its ranks. All ranks have agreed on them, and they never change.
struct Setup {
  KfacOptions options;
  RankExchange exchange;
  std::vector<Layer> layers = {};
  std::vector<SkippedLayer> left_alone = {};
  std::vector<int64_t> numbers = {};  ///< by layer: its number in the model
  std::vector<Assignment> assignments = {};
  std::vector<FactorId> owned = {};  ///< the factors that this rank decomposes, in order
  UpdateCycle cycle{0};
  UpdateCycle cycle_of_model{0};  ///< the cycle of all stages' layers, whose work each stage counts
  /// ModelStages::all_rows; null where the model is whole.
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& numbers)> rows_of_stages = {};

  int64_t rank() const { return exchange.rank(); }
  const LayerShape& shape(size_t layer) const { return layers[layer].shape; }
  FactorShape factor(const FactorId& id) const { return layers[id.layer].shape.factors()[id.factor]; }
  /// Returns the type and device of the layers' state that is no layer's own.
  at::TensorOptions state() const { return state_options(layers.front().weight); }

  /// Returns the rows of all stages' layers, in the model's order, from those of some layers of this stage. Collective
  /// over stages.
  at::Tensor all_rows(const at::Tensor& rows, const std::vector<size_t>& of_layers) const {
    if (!rows_of_stages) return rows;
    std::vector<int64_t> of_model;
    for (size_t i : of_layers) of_model.push_back(numbers[i]);
    return rows_of_stages(rows, of_model);
  }
};

/// The counts, times and operations of a Kfac, to which each part adds its own.
struct Tally {
  KfacCounters counters = {};  ///< without the two counts that the device keeps
  KfacSeconds seconds = {};
  KfacFlops flops = {};
  at::Tensor dropped, failed;  ///< KfacCounters' counts of factors that had trouble: 0-dim int64, on the device
};

}  // namespace spillway::kfac
