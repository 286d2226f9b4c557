/// The walk of graphs that a Kfac watches, and of those that are made while backward runs.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "kfac/factors/capture.h"
#include "kfac/factors/layers.h"

namespace spillway::kfac {

struct StagedFactors;

/// The layers that a step's graphs are to show, and what becomes of that. Hooks in the graphs share it.
struct GraphWatch {
  WeightIndex due;
  Sink sink;
  std::weak_ptr<StagedFactors> staged;  ///< graphs may outlive the Kfac
  RerunFinder find_reruns;              ///< may be null
};

/// Makes the graph behind `roots` show the layers, and those that are run again while it goes back. Returns what it
/// met, which the StagedFactors note.
GraphLayers watch_graph(at::TensorList roots, const std::shared_ptr<const GraphWatch>& watch);

}  // namespace spillway::kfac
