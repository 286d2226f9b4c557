#include "ddl/torch/gpu_operators.h"

#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/batch.h"
#include "ddl/torch/host_operators.h"
#include "ddl/torch/reduced_batch.h"
#include "ddl/torch/staging_memory.h"
#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

/// The texts that go beside an element's type into a Call, because other cuts make other calls of the network.
constexpr std::string_view kOnGpus = " on GPUs", kInEqualParts = " in equal parts on GPUs";

/// Returns the batch in memory of the host, with `filled` copied there.
at::Tensor on_host(const Batch& batch, const Batch& filled) {
  at::Tensor host = host_staging(batch.size, batch.type(), batch.device());
  pack(filled, host);
  if (!filled.pieces.empty()) recorded(batch.device()).wait();
  return host;
}

/// Calls `on_batch` for batches of equal parts in the network's order, or without a network in the order of ranks.
void for_each_batch_of_parts(const at::Tensor& vector, int ranks, const HierarchicalNccl* levels,
                             const OnBatch& on_batch) {
  std::vector<int> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  for_each_batch_of_parts(vector, levels ? ranks_by_block(*levels, ranks) : order, on_batch);
}

/// Makes sure that all ranks mean the same call, on GPUs.
void agree_on(Communicator& comm, Operation operation, at::TensorList tensors, Element element, uint64_t more,
              std::string_view how = kOnGpus) {
  const Call call{operation, -1, total_bytes(tensors) / element_bytes(element), hash_in(signature_of(tensors), more)};
  const std::string layout = layout_of(tensors);
  agree(comm, call.with_detail({name_of(element), layout.empty() ? "" : " ", layout, how}));
}

HierarchicalNccl* network_for(GpuBackend& gpus, const at::Tensor& tensor, Element element, Reduction reduction) {
  return reduces_by_nccl(element, reduction) ? gpus.levels(tensor.device()) : nullptr;
}

Operation operation_of(Reduction reduction) {
  return static_cast<Operation>(number_of(reduction) + static_cast<int64_t>(Operation::allreduce_sum));
}

void broadcast_batch(const Batch& batch, HierarchicalNccl& levels, int root, std::span<const int> members) {
  if (batch.pieces.size() == 1) {
    const at::Tensor bytes = elements(batch.pieces[0].tensor, batch.pieces[0].elements);
    return levels.broadcast(bytes.data_ptr(), batch.size, root, members);
  }
  const at::Tensor buffer = gpu_staging(batch.size, batch.type(), batch.device());
  pack(batch, buffer);
  levels.broadcast(buffer.data_ptr(), batch.size, root, members);
  unpack(batch, buffer);
}

/// Returns the ends of the parts within some elements, counted from the first of them.
std::vector<int64_t> within(at::IntArrayRef ends, Range elements) {
  std::vector<int64_t> inside;
  for (const int64_t end : ends) inside.push_back(std::clamp(end, elements.begin, elements.end) - elements.begin);
  return inside;
}

void check_ends(at::IntArrayRef ends, at::IntArrayRef owners, int64_t count, int ranks) {
  TORCH_CHECK(ends.size() == owners.size(), "[ddl] reduce_: ", ends.size(), " parts have ", owners.size(), " homes");
  int64_t last = 0;
  for (size_t i = 0; i < ends.size(); last = ends[i++])
    if (ends[i] < last || ends[i] > count || owners[i] < 0 || owners[i] >= ranks)
      throw BadRequest(str("[ddl] reduce_: part ", i, " ends at ", ends[i], " at home ", owners[i],
                           "; allowed: ascending ends up to ", count, ", homes from 0 to ", ranks - 1));
}

std::vector<Range> parts_of(int rank, at::IntArrayRef ends, at::IntArrayRef owners) {
  std::vector<Range> parts;
  for (size_t i = 0; i < ends.size(); ++i)
    if (owners[i] == rank) parts.push_back({i == 0 ? 0 : ends[i - 1], ends[i]});
  return parts;
}

}  // namespace

bool reduces_by_nccl(Element element, Reduction reduction) {
  const bool sums = reduction == Reduction::sum || reduction == Reduction::average;
  return sums || element == Element::int32 || element == Element::int64;
}

// A vector alone is cut as reduce_scatter_on_gpus and all_gather_on_gpus cut it. So the network is called with the same
// elements at the same places, and the sums have the same bits.
void allreduce_on_gpus(at::TensorList tensors, const Comm& comm, GpuBackend& gpus, Reduction reduction) {
  const int ranks = comm->communicator->size();
  for_each_group(tensors, [&](at::TensorList group) {
    const Element element = element_of(group[0], "allreduce_");
    agree_on(*comm->communicator, operation_of(reduction), group, element, number_of(reduction));
    HierarchicalNccl* levels = network_for(gpus, group[0], element, reduction);
    const auto reduce = [&](const Batch& batch) {
      if (levels) return unpack(batch, allreduce(batch, *levels, ranks, reduction));
      const at::Tensor host = on_host(batch, batch);
      allreduce_on_host(host, comm, number_of(reduction));
      unpack(batch, host);
    };
    if (levels && group.size() == 1)
      for_each_batch_of_parts(group[0], ranks, levels, reduce);
    else
      for_each_batch(group, reduce);
  });
  bump_versions(tensors);
}

void broadcast_on_gpus(at::TensorList tensors, const Comm& comm, GpuBackend& gpus, int root,
                       std::span<const int> members) {
  Communicator& world = *comm->communicator;
  if (std::find(members.begin(), members.end(), world.rank()) == members.end()) return;
  const bool receiver = world.rank() != root, all = std::ssize(members) == world.size();
  const std::vector<int64_t> ranks(members.begin(), members.end());
  for_each_group(tensors, [&](at::TensorList group) {
    // This call also reports an error in the list of members.
    broadcast(world, {}, root, members, hash_in(signature_of(group), total_bytes(group)), layout_of(group));
    // A decision takes all ranks. Until it is made, a broadcast among some ranks is staged.
    HierarchicalNccl* levels = all || gpus.decided() ? gpus.levels(group[0].device()) : nullptr;
    std::vector<at::Tensor> bytes;
    for (const at::Tensor& tensor : group) bytes.push_back(elements(tensor, {0, tensor.numel()}).view(at::kByte));
    for_each_batch(bytes, [&](const Batch& batch) {
      if (levels) return broadcast_batch(batch, *levels, root, members);
      const at::Tensor host = on_host(batch, receiver ? Batch{} : batch);
      broadcast_on_host(host, comm, root, ranks);
      if (receiver) unpack(batch, host);
    });
  });
  if (receiver) bump_versions(tensors);
}

// By the network the whole vector is reduced as allreduce_ does it, because owners that get parts of other sizes would
// make other sums.
void reduce_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus, at::IntArrayRef ends,
                    at::IntArrayRef owners, Reduction reduction) {
  Communicator& world = *comm->communicator;
  const Element element = element_of(vector, "reduce_");
  check_ends(ends, owners, vector.numel(), world.size());
  uint64_t parts = hash_in(kHashSeed, reduction);
  for (size_t i = 0; i < ends.size(); ++i) parts = hash_in(hash_in(parts, ends[i]), owners[i]);
  agree_on(world, Operation::reduce, vector, element, parts);
  const std::vector<Range> own = parts_of(world.rank(), ends, owners);
  if (HierarchicalNccl* levels = network_for(gpus, vector, element, reduction))
    for_each_batch_of_parts(vector, world.size(), levels, [&](const Batch& batch) {
      unpack(batch.within(own), allreduce(batch, *levels, world.size(), reduction));
    });
  else
    for_each_batch(vector, [&](const Batch& batch) {
      const at::Tensor host = on_host(batch, batch);
      reduce_on_host(host, comm, within(ends, batch.pieces[0].elements), owners, number_of(reduction));
      unpack(batch.within(own), host);
    });
  bump_versions(vector);
}

void reduce_scatter_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus, Reduction reduction) {
  const int ranks = comm->communicator->size();
  const Element element = element_of(vector, "reduce_scatter_");
  agree_on(*comm->communicator, Operation::reduce, vector, element, number_of(reduction), kInEqualParts);
  HierarchicalNccl* levels = network_for(gpus, vector, element, reduction);
  const std::vector<Range> own{own_part(vector.numel(), comm)};
  for_each_batch_of_parts(vector, ranks, levels, [&](const Batch& batch) {
    if (levels) return unpack(batch.within(own), reduce_scatter(batch, *levels, ranks, reduction).buffer);
    const at::Tensor host = on_host(batch, batch);
    reduce_scatter_on_host(host, comm, number_of(reduction));
    unpack(batch.within(own), host);
  });
  bump_versions(vector);
}

void all_gather_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus) {
  const Element element = element_of(vector, "all_gather_");
  agree_on(*comm->communicator, Operation::gather, vector, element, 0, kInEqualParts);
  HierarchicalNccl* levels = gpus.levels(vector.device());
  const std::vector<Range> own{own_part(vector.numel(), comm)};
  for_each_batch_of_parts(vector, comm->communicator->size(), levels, [&](const Batch& batch) {
    if (!levels) {
      const at::Tensor host = on_host(batch, batch.within(own));
      all_gather_on_host(host, comm);
      return unpack(batch, host);
    }
    const at::Tensor buffer = gpu_staging(batch.size, batch.type(), batch.device());
    pack(batch.within(own), buffer);
    levels->all_gather(buffer.data_ptr(), batch.size, element);
    unpack(batch, buffer);
  });
  bump_versions(vector);
}

namespace {

/// Checks tensors that come through the dispatcher.
void check(at::TensorList tensors, const char* operation) {
  check_one_device(tensors, operation);
  for (const at::Tensor& tensor : tensors) check_dense(tensor, operation);
}

void allreduce_kernel(at::TensorList tensors, const Comm& comm, int64_t reduction) {
  const at::NoGradGuard no_grad;
  check(tensors, "allreduce_");
  allreduce_on_gpus(tensors, comm, *comm->gpus, reduction_of(reduction, "allreduce_"));
}

void broadcast_kernel(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members) {
  const at::NoGradGuard no_grad;
  check(tensors, "broadcast_");
  const std::vector<int> ranks(members.begin(), members.end());
  broadcast_on_gpus(tensors, comm, *comm->gpus, root, ranks);
}

void reduce_kernel(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef owners,
                   int64_t reduction) {
  const at::NoGradGuard no_grad;
  check(vector, "reduce_");
  reduce_on_gpus(vector, comm, *comm->gpus, ends, owners, reduction_of(reduction, "reduce_"));
}

void reduce_scatter_kernel(const at::Tensor& vector, const Comm& comm, int64_t reduction) {
  const at::NoGradGuard no_grad;
  check(vector, "reduce_scatter_");
  reduce_scatter_on_gpus(vector, comm, *comm->gpus, reduction_of(reduction, "reduce_scatter_"));
}

void all_gather_kernel(const at::Tensor& vector, const Comm& comm) {
  const at::NoGradGuard no_grad;
  check(vector, "all_gather_");
  all_gather_on_gpus(vector, comm, *comm->gpus);
}

}  // namespace

void add_gpu_operators(torch::Library& library) {
  library.impl("allreduce_", allreduce_kernel);
  library.impl("broadcast_", broadcast_kernel);
  library.impl("reduce_", reduce_kernel);
  library.impl("reduce_scatter_", reduce_scatter_kernel);
  library.impl("all_gather_", all_gather_kernel);
}

}  // namespace spillway::ddl
