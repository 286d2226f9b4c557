#include "ddl/torch/host_operators.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "ddl/allreduce/owner_reduction.h"
#include "ddl/allreduce/program.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/staging_memory.h"
#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

void pack(at::TensorList tensors, const Communicator& comm, std::byte* into) {
  if (comm.is_simulated()) return;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(into, tensor.data_ptr(), tensor.nbytes());
    into += tensor.nbytes();
  }
}

void unpack(at::TensorList tensors, const Communicator& comm, const std::byte* from) {
  if (comm.is_simulated()) return;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

void allreduce_group(at::TensorList tensors, const CommunicatorHandle& comm, Reduction reduction) {
  const uint64_t signature = signature_of(tensors);
  const std::string layout = layout_of(tensors);
  const Element element = element_of(tensors[0], "allreduce_");
  const int64_t fused = tensors.size() == 1 ? 0 : align_scratch(total_bytes(tensors));
  const int64_t count = total_bytes(tensors) / element_bytes(element);
  Allreduce& allreduce = comm.allreduce->for_bytes(total_bytes(tensors));
  const at::Tensor staging = staging_bytes(fused + comm.allreduce->scratch_bytes(total_bytes(tensors), count, element));
  const auto buffer = bytes_of(staging), scratch = buffer.subspan(fused);
  if (tensors.size() == 1) {
    allreduce.reduce(in_place(bytes_of(tensors[0]), element), reduction, scratch, signature, layout);
    return;
  }
  pack(tensors, *comm.communicator, buffer.data());
  allreduce.reduce(in_place(buffer.first(total_bytes(tensors)), element), reduction, scratch, signature, layout);
  unpack(tensors, *comm.communicator, buffer.data());
}

void broadcast_group(at::TensorList tensors, Communicator& comm, int root, std::span<const int> members) {
  const uint64_t signature = signature_of(tensors);
  const std::string layout = layout_of(tensors);
  if (tensors.size() == 1) {
    broadcast(comm, bytes_of(tensors[0]), root, members, signature, layout);
    return;
  }
  const at::Tensor staging = staging_bytes(total_bytes(tensors));
  if (comm.rank() == root) pack(tensors, comm, bytes_of(staging).data());
  broadcast(comm, bytes_of(staging), root, members, signature, layout);
  if (comm.rank() != root) unpack(tensors, comm, bytes_of(staging).data());
}

OwnerReduction reduction_over(const at::Tensor& vector, const Comm& comm, std::vector<OwnedPart> parts,
                              const char* operation) {
  check_dense(vector, operation);
  return {*comm->communicator, vector.numel(), element_of(vector, operation), std::move(parts),
          comm->allreduce->segment_bytes()};
}

void reduce_parts(const at::Tensor& vector, const Comm& comm, std::vector<OwnedPart> parts, int64_t reduction,
                  const char* operation) {
  OwnerReduction at_owners = reduction_over(vector, comm, std::move(parts), operation);
  const auto scratch = staging_bytes(at_owners.reduce_scratch_bytes());
  at_owners.reduce(bytes_of(vector), reduction_of(reduction, operation), bytes_of(scratch));
  vector.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void allreduce_on_host(at::TensorList tensors, const Comm& comm, int64_t reduction) {
  for (const at::Tensor& tensor : tensors) check_dense(tensor, "allreduce_");
  for_each_group(tensors,
                 [&](at::TensorList group) { allreduce_group(group, *comm, reduction_of(reduction, "allreduce_")); });
  bump_versions(tensors);
}

void broadcast_on_host(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members) {
  for (const at::Tensor& tensor : tensors) check_dense(tensor, "broadcast_");
  const std::vector<int> ranks(members.begin(), members.end());
  for_each_group(tensors, [&](at::TensorList group) { broadcast_group(group, *comm->communicator, root, ranks); });
  const bool receiver = comm->communicator->rank() != root &&
                        std::find(members.begin(), members.end(), comm->communicator->rank()) != members.end();
  if (receiver) bump_versions(tensors);
}

void reduce_on_host(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef owners,
                    int64_t reduction) {
  TORCH_CHECK(ends.size() == owners.size(), "[ddl] reduce_: ", ends.size(), " parts have ", owners.size(), " homes");
  std::vector<OwnedPart> parts;
  for (size_t i = 0; i < ends.size(); ++i) {
    const int owner = owners[i];
    parts.push_back({{i == 0 ? 0 : ends[i - 1], ends[i]}, owner});
  }
  reduce_parts(vector, comm, std::move(parts), reduction, "reduce_");
}

void reduce_scatter_on_host(const at::Tensor& vector, const Comm& comm, int64_t reduction) {
  reduce_parts(vector, comm, equal_parts(vector.numel(), comm->communicator->size()), reduction, "reduce_scatter_");
}

void all_gather_on_host(const at::Tensor& vector, const Comm& comm) {
  auto parts = equal_parts(vector.numel(), comm->communicator->size());
  reduction_over(vector, comm, std::move(parts), "all_gather_").gather(bytes_of(vector));
  vector.unsafeGetTensorImpl()->bump_version();
}

}  // namespace spillway::ddl
