/// Collectives as dispatcher operators: whatever stands in the dispatcher makes their tensors resident like anyone's.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <memory>

#include "ddl/communicator.h"

namespace spillway::ddl {

class Communicator;

/// A Communicator as operators take it (a torchbind class, `spillway::Communicator`).
struct CommunicatorHandle final : torch::CustomClassHolder {
  explicit CommunicatorHandle(std::shared_ptr<Communicator> communicator) : communicator(std::move(communicator)) {}
  const std::shared_ptr<Communicator> communicator;
};
using Comm = c10::intrusive_ptr<CommunicatorHandle>;

enum class Reduction : int64_t { sum, average };

/// Reduces every tensor over all ranks, in place; all ranks get the same bits. float32, dense, any shape; every rank
/// passes the same shapes in the same order. Blocking. Tensors are fused through one staging buffer of at most
/// `kFusionBytes`, so that many small ones cost few messages. Averages divide once, at the end.
/// Throws CommError. Operator: `spillway::allreduce_`.
void allreduce_(at::TensorList tensors, const Comm& comm, Reduction reduction);

/// Copies the tensors of rank `root` to every rank in `members` (which contains root; the same list on each member;
/// other ranks return at once). Blocking. Throws CommError. Operator: `spillway::broadcast_`.
void broadcast_(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members);

}  // namespace spillway::ddl
