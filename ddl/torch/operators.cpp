#include "ddl/torch/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ddl/comm/collectives.h"
#include "ddl/torch/dense_tensor.h"
#include "ddl/torch/gpu_operators.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

void pack(at::TensorList tensors, std::byte* into) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(into, tensor.data_ptr(), tensor.nbytes());
    into += tensor.nbytes();
  }
}

void unpack(at::TensorList tensors, const std::byte* from) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

void allreduce_group(at::TensorList tensors, TunedAllreduce& tuned, Reduction reduction) {
  const uint64_t signature = signature_of(tensors);
  const Element element = element_of(tensors[0], "allreduce_");
  const int64_t fused = tensors.size() == 1 ? 0 : aligned(total_bytes(tensors));
  const int64_t count = total_bytes(tensors) / element_bytes(element);
  Allreduce& allreduce = tuned.for_bytes(total_bytes(tensors));
  const at::Tensor staging = staging_bytes(fused + allreduce.scratch_bytes(count, element));
  const auto buffer = bytes_of(staging), scratch = buffer.subspan(static_cast<size_t>(fused));
  if (tensors.size() == 1) {
    allreduce.reduce(in_place(bytes_of(tensors[0]), element), reduction, scratch, signature);
    return;
  }
  pack(tensors, buffer.data());
  allreduce.reduce(in_place(buffer.first(static_cast<size_t>(total_bytes(tensors))), element), reduction, scratch,
                   signature);
  unpack(tensors, buffer.data());
}

void allreduce_kernel(at::TensorList tensors, const Comm& comm, int64_t reduction) {
  for (const at::Tensor& tensor : tensors) check_dense(tensor, "allreduce_");
  for_each_group(tensors, [&](at::TensorList group) {
    allreduce_group(group, comm->allreduce, reduction_of(reduction, "allreduce_"));
  });
  bump_versions(tensors);
}

void broadcast_group(at::TensorList tensors, Communicator& comm, int root, std::span<const int> members) {
  const uint64_t signature = signature_of(tensors);
  if (tensors.size() == 1) {
    broadcast(comm, bytes_of(tensors[0]), root, members, signature);
    return;
  }
  const at::Tensor staging = staging_bytes(total_bytes(tensors));
  if (comm.rank() == root) pack(tensors, bytes_of(staging).data());
  broadcast(comm, bytes_of(staging), root, members, signature);
  if (comm.rank() != root) unpack(tensors, bytes_of(staging).data());
}

void broadcast_kernel(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members) {
  for (const at::Tensor& tensor : tensors) check_dense(tensor, "broadcast_");
  const std::vector<int> ranks(members.begin(), members.end());
  for_each_group(tensors, [&](at::TensorList group) {
    broadcast_group(group, *comm->communicator, static_cast<int>(root), ranks);
  });
  const bool receiver = comm->communicator->rank() != root &&
                        std::find(members.begin(), members.end(), comm->communicator->rank()) != members.end();
  if (receiver) bump_versions(tensors);
}

// These registrations run before main wherever this file is linked. A static library's member is linked only when
// something refers to it: whoever calls allreduce_, broadcast_ or make_comm, below in this file, does. A program that
// means to reach the operators by name alone must link spillway_ddl_torch whole.
TORCH_LIBRARY_FRAGMENT(spillway, library) {
  library.class_<CommunicatorHandle>("Communicator");
  library.def(
      "allreduce_(Tensor(a!)[] tensors, __torch__.torch.classes.spillway.Communicator communicator, int reduction) -> "
      "()");
  library.def(
      "broadcast_(Tensor(a!)[] tensors, __torch__.torch.classes.spillway.Communicator communicator, int root, int[] "
      "members) -> ()");
  library.def(
      "reduce_(Tensor(a!) vector, __torch__.torch.classes.spillway.Communicator communicator, int[] ends, int[] homes, "
      "int reduction) -> ()");
  library.def(
      "reduce_scatter_(Tensor(a!) vector, __torch__.torch.classes.spillway.Communicator communicator, int reduction) "
      "-> "
      "()");
  library.def("all_gather_(Tensor(a!) vector, __torch__.torch.classes.spillway.Communicator communicator) -> ()");
}

TORCH_LIBRARY_IMPL(spillway, CompositeExplicitAutograd, library) {
  library.impl("allreduce_", allreduce_kernel);
  library.impl("broadcast_", broadcast_kernel);
}

TORCH_LIBRARY_IMPL(spillway, CUDA, library) {
  add_card_operators(library);
}

}  // namespace

Comm make_comm(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs) {
  return c10::make_intrusive<CommunicatorHandle>(std::move(communicator), std::move(costs));
}

void allreduce_(at::TensorList tensors, const Comm& comm, Reduction reduction) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::allreduce_", "")
                                    .typed<void(at::TensorList, const Comm&, int64_t)>();
  check_one_device(tensors, "allreduce_");
  const at::NoGradGuard no_grad;
  for_each_group(tensors, [&](at::TensorList group) { operation.call(group, comm, static_cast<int64_t>(reduction)); });
}

void broadcast_(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::broadcast_", "")
                                    .typed<void(at::TensorList, const Comm&, int64_t, at::IntArrayRef)>();
  if (std::find(members.begin(), members.end(), comm->communicator->rank()) == members.end()) return;
  check_one_device(tensors, "broadcast_");
  const at::NoGradGuard no_grad;
  for_each_group(tensors, [&](at::TensorList group) { operation.call(group, comm, root, members); });
}

}  // namespace spillway::ddl
