/// The scales between eigenbases that a step multiplies its gradients by.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kfac/inverse/scales.h"
#include "kfac/refresh/layer_batches.h"
#include "kfac/refresh/layer_dampings.h"
#include "kfac/refresh/layer_inverses.h"

namespace spillway::kfac {

/// The scales of every batch of layers. They follow inverses and dampings, which most steps leave as they are: scales
/// of scale_tensors() stay until one of them changes, others are made anew in each step.
class BatchScales {
 public:
  /// Takes the memory of the scales that stay. The arguments must outlive it.
  BatchScales(const Setup& setup, const std::vector<LayerBatch>& batches, const LayerInverses& inverses,
              const LayerDampings& dampings);

  /// Makes γ of all layers as the dampings now have it.
  void begin_step();
  /// Returns the scales of a batch, whose layers this rank preconditions.
  LayerScales of(size_t batch);
  /// Returns the scales of one layer, which do not stay.
  LayerScales of_layer(size_t layer) const;
  /// Returns the bytes of the scales that are held.
  int64_t bytes() const;

 private:
  struct Held {
    LayerScales scales;
    /// The versions of the dampings and of each layer's inverse that the scales are of; empty at first.
    std::vector<int64_t> versions;
  };
  bool has_gamma(size_t layer) const;
  Damping damping_of(const std::vector<size_t>& layers) const;
  std::vector<int64_t> versions_of(const LayerBatch& batch) const;

  const Setup& setup_;
  const std::vector<LayerBatch>& batches_;
  const LayerInverses& inverses_;
  const LayerDampings& dampings_;
  std::vector<Held> held_;         ///< by batch
  at::Tensor mean_curvatures_;     ///< by layer; defined where γ is of a step and not of a decomposition
  std::vector<int64_t> versions_;  ///< by layer: version of the inverse whose mean curvature is known
  at::Tensor gammas_;              ///< γ of each layer that has_gamma()
  int64_t damping_version_ = -1;   ///< version of the dampings of which gammas_ are
};

}  // namespace spillway::kfac
