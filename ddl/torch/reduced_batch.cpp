#include "ddl/torch/reduced_batch.h"

#include "ddl/torch/staging_memory.h"
#include "ddl/torch/tensor_elements.h"

namespace spillway::ddl {
namespace {

bool is_16_bits(Element element) {
  return partial_bytes(element) != element_bytes(element);
}

at::Tensor part_of(const at::Tensor& buffer, Range range) {
  return buffer.narrow(0, range.begin, range.size());
}

}  // namespace

std::vector<int> ranks_by_block(const HierarchicalNccl& levels, int ranks) {
  std::vector<int> order(ranks);
  for (int rank = 0; rank < ranks; ++rank) order[levels.part(ranks, rank).begin] = rank;
  return order;
}

ReducedBatch reduce_scatter(const Batch& batch, HierarchicalNccl& levels, int ranks, Reduction reduction) {
  const Element element = element_of(batch.pieces[0].tensor, "reduce_scatter_");
  const Element partial = is_16_bits(element) ? Element::float32 : element;
  const int64_t padded = levels.padded(batch.size);
  at::Tensor buffer = gpu_staging(padded, is_16_bits(element) ? at::kFloat : batch.type(), batch.device());
  pack(batch, buffer);
  const Reduction started = reduction == Reduction::average ? Reduction::sum : reduction;
  const Range mine = levels.reduce_scatter(buffer.data_ptr(), padded, partial, started);
  if (reduction == Reduction::average) {
    if (buffer.is_floating_point())
      part_of(buffer, mine).div_(ranks);
    else
      part_of(buffer, mine).div_(ranks, "trunc");
  }
  return {buffer, mine};
}

at::Tensor allreduce(const Batch& batch, HierarchicalNccl& levels, int ranks, Reduction reduction) {
  const Element element = element_of(batch.pieces[0].tensor, "allreduce_");
  auto [buffer, mine] = reduce_scatter(batch, levels, ranks, reduction);
  if (is_16_bits(element)) {
    const at::Tensor sums = buffer;
    buffer = gpu_staging(sums.numel(), batch.type(), batch.device());
    part_of(buffer, mine).copy_(part_of(sums, mine));
  }
  levels.all_gather(buffer.data_ptr(), buffer.numel(), element);
  return buffer;
}

}  // namespace spillway::ddl
