/// A model that is cut into stages, each of which has a Kfac of its own.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kfac/plan/layer_curvature.h"
#include "kfac/plan/layer_shape.h"

namespace spillway::kfac {

/// The other stages as a Kfac sees them. Its steps are then those of a Kfac of the whole model: the clip and
/// DampingScope::network are over all layers, Strategy::dp places owners among all layers, and KfacCounters' updates
/// and decompositions are the model's.
struct ModelStages {
  /// The layers of all stages, in the model's order. Empty: the model is whole.
  std::vector<LayerShape> layers = {};
  /// KfacOptions::layer_curvature of the layers of all stages; empty where a stage's Kfac has none.
  std::vector<LayerCurvature> curvature = {};
  /// Returns the rows of all stages by ascending number, from this stage's rows [n, k] and their layers' numbers in
  /// `layers`. Called equally often on every stage. Collective over stages.
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& numbers)> all_rows = {};
};

/// The samples of a backward pass of a stage.
struct StageSamples {
  int64_t count = 0;
  bool again = false;       ///< a call of this step has counted them, for another stage of this rank
  int64_t micro_batch = 0;  ///< their number in the step
};

}  // namespace spillway::kfac
