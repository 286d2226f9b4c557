/// Layers of one shape that are preconditioned as one.
#pragma once
#include <cstdint>
#include <vector>

#include "kfac/refresh/setup.h"

namespace spillway::kfac {

/// Layers that stand side by side in a preconditioning, in ascending order.
struct LayerBatch {
  std::vector<size_t> layers;
  LayerShape shape;          ///< the shape of all of them: side_by_side()
  bool is_together = false;  ///< true where its layers may share a batch, also when there is only one
};

/// Returns the default of KfacOptions::batch_elements. On a GPU an operator's call takes longer than the arithmetic of
/// most layers. On a CPU no batch is known to pay.
int64_t default_batch_elements(const at::Device& device);
/// Returns KfacOptions::batch_elements, or its default.
int64_t batch_elements(const Setup& setup);

/// Puts every layer into one batch, in the order of the batches' first layers. Layers of a batch have equal shapes,
/// types and gradient workers, so that replicas of a layer get the same bits on each worker. A batch has as many layers
/// as batch_elements() of gradients and inverses allow, so it needs no more memory than one larger layer. No budget has
/// a say.
std::vector<LayerBatch> batches_of(const Setup& setup);

}  // namespace spillway::kfac
