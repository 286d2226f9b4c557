#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>

#include "ddl/comm/communicator.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_operators.h"
#include "ddl/torch/host_operators.h"
#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

// The registrations run before main wherever this file is linked. A static library's member is linked only when
// something refers to it, as any caller of an operator, below in this file, does. A program that means to reach the
// operators by name alone must link spillway_ddl_torch whole.
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
  library.impl("allreduce_", allreduce_on_host);
  library.impl("broadcast_", broadcast_on_host);
  library.impl("reduce_", reduce_on_host);
  library.impl("reduce_scatter_", reduce_scatter_on_host);
  library.impl("all_gather_", all_gather_on_host);
}

TORCH_LIBRARY_IMPL(spillway, CUDA, library) {
  add_gpu_operators(library);
}

}  // namespace

void allreduce_(at::TensorList tensors, const Comm& comm, Reduction reduction) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::allreduce_", "")
                                    .typed<void(at::TensorList, const Comm&, int64_t)>();
  check_one_device(tensors, "allreduce_");
  const at::NoGradGuard no_grad;
  for_each_group(tensors, [&](at::TensorList group) { operation.call(group, comm, number_of(reduction)); });
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

void reduce_(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef owners,
             Reduction reduction) {
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("spillway::reduce_", "")
          .typed<void(const at::Tensor&, const Comm&, at::IntArrayRef, at::IntArrayRef, int64_t)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm, ends, owners, number_of(reduction));
}

void reduce_scatter_(const at::Tensor& vector, const Comm& comm, Reduction reduction) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::reduce_scatter_", "")
                                    .typed<void(const at::Tensor&, const Comm&, int64_t)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm, number_of(reduction));
}

void all_gather_(const at::Tensor& vector, const Comm& comm) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("spillway::all_gather_", "")
                                    .typed<void(const at::Tensor&, const Comm&)>();
  const at::NoGradGuard no_grad;
  operation.call(vector, comm);
}

}  // namespace spillway::ddl
