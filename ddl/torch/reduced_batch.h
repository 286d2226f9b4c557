/// A reduction of a batch of GPUs' elements by their network.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "ddl/comm/element.h"
#include "ddl/nccl/hierarchical_nccl.h"
#include "ddl/torch/batch.h"

namespace spillway::ddl {

/// Returns, by block of a vector that HierarchicalNccl reduce-scatters, the rank that keeps the block.
std::vector<int> ranks_by_block(const HierarchicalNccl& levels, int ranks);

/// A batch in a buffer of the GPU, of which `mine` is reduced, and divided for an average; the rest is undefined.
/// 16-bit floats are float32 there.
struct ReducedBatch {
  at::Tensor buffer;
  Range mine;
};
/// Reduces a batch in a buffer of the GPU. Collective, over `ranks` ranks; the batch is of one type and size on all.
/// Throws CommError.
ReducedBatch reduce_scatter(const Batch& batch, HierarchicalNccl& levels, int ranks, Reduction reduction);
/// Returns the whole batch reduced, in its own type. 16-bit floats are rounded once, on the rank that has their sum.
/// Collective. Throws CommError.
at::Tensor allreduce(const Batch& batch, HierarchicalNccl& levels, int ranks, Reduction reduction);

}  // namespace spillway::ddl
