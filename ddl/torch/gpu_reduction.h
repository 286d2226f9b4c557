/// A batch of cards' elements, reduced by their network.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "ddl/comm/element.h"
#include "ddl/nccl/hierarchical_allreduce.h"
#include "ddl/torch/fusion_buffer.h"

namespace spillway::ddl {

/// By block of a vector that DeviceLevels reduce-scatters: the rank that keeps it.
std::vector<int> ranks_by_block(const DeviceLevels& levels, int ranks);

/// The batch in a buffer of the card, of which `mine` is reduced, and divided for an average; the rest is undefined.
/// 16-bit floats are float32 there.
struct Reduced {
  at::Tensor buffer;
  Range mine;
};
/// Collective, over `ranks`; the batch is of one type and size on all. Throws CommError.
Reduced reduce_scatter(const Batch& batch, DeviceLevels& levels, int ranks, Reduction reduction);
/// The whole batch reduced, in its own type: 16-bit floats are rounded once, where their sum is. Collective. Throws
/// CommError.
at::Tensor allreduce(const Batch& batch, DeviceLevels& levels, int ranks, Reduction reduction);

}  // namespace spillway::ddl
