/// Communicators as LibTorch's dispatcher takes them, and the collectives over them as operators. Code that stands in
/// the dispatcher makes their tensors resident as it does for any operator.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ddl/comm/element.h"

namespace spillway::ddl {

class GpuBackend;
class Communicator;
struct Costs;
class TunedAllreduce;

/// A Communicator as operators take it (a torchbind class, `spillway::Communicator`), with its allreduces. Their plans
/// and work lists are kept between calls.
struct CommunicatorHandle final : torch::CustomClassHolder {
  CommunicatorHandle(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs);
  ~CommunicatorHandle() override;
  const std::shared_ptr<Communicator> communicator;
  const std::unique_ptr<TunedAllreduce> allreduce;
  const std::unique_ptr<GpuBackend> gpus;  ///< for tensors that are on a GPU
};
/// A shared handle on a communicator, as operators take it; null where a process is alone.
using Comm = c10::intrusive_ptr<CommunicatorHandle>;

/// Wraps a communicator for the operators. `costs`, the same on every rank, let them choose a plan for each size
/// (TunedAllreduce). No bit of a result depends on `costs`.
Comm make_comm(std::shared_ptr<Communicator> communicator, std::optional<Costs> costs);
/// Wraps a communicator whose links have not been measured.
Comm make_comm(std::shared_ptr<Communicator> communicator);
/// Wraps a communicator with the costs that calibrate() measures. Collective. Throws CommError.
Comm make_calibrated_comm(std::shared_ptr<Communicator> communicator);

/// Returns this rank's number; 0 where `comm` is null.
int rank_of(const Comm& comm);
/// Returns the number of ranks; 1 where `comm` is null.
int size_of(const Comm& comm);

/// Returns the elements of a vector of `count` that are this rank's in reduce_scatter_ and all_gather_. They are part
/// rank() of size() parts, as equal as can be.
Range own_part(int64_t count, const Comm& comm);

/// Reduces every tensor over all ranks, in place; all ranks get the same bits. Tensors are dense, of any shape and any
/// type of Element, all on the CPU or on one GPU. Every rank passes the same types, shapes and strides in the same
/// order. Blocking; on a GPU (gpu_operators.h) in the order of its current stream. Neighbors of one type are fused
/// through one staging buffer of at most `kFusionBytes`, so that many small ones cost few messages. 16-bit floats are
/// summed in float32 and rounded once; averages divide once, at the end.
/// The operator is called once per group of at most kFusionBytes or one larger tensor. So a budget need only hold one
/// group, its staging and scratch of a few MiB at a time. Autograd does not see the operator; version counters do.
/// Throws CommError. Operator: `spillway::allreduce_`.
void allreduce_(at::TensorList tensors, const Comm& comm, Reduction reduction);

/// Reduces part i of `vector`, elements ends[i−1] … ends[i], on rank owners[i] alone. There it becomes the result of
/// allreduce_, bit for bit; other ranks keep their own elements. The parts are the same on every rank. Blocking. The
/// reduction goes by levels. Scratch: some 10 MiB. On a GPU as allreduce_. Throws BadRequest, CommError. Operator:
/// `spillway::reduce_`.
void reduce_(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef owners,
             Reduction reduction);

/// Does the first half of an allreduce: replaces part rank() of `vector`, own_part(), by the reduction of all ranks'
/// elements there. Other elements stay each rank's own. The vector is dense, of any shape (parts are of its memory, in
/// order) and any type of Element, the same on every rank. Blocking. The bits are those of allreduce_ of the vector
/// alone. On a GPU as allreduce_. Operator: `spillway::reduce_scatter_`. Throws BadRequest, CommError.
void reduce_scatter_(const at::Tensor& vector, const Comm& comm, Reduction reduction);
/// Does the second half of an allreduce: replaces each rank's part by that rank's elements, on all ranks. Works for a
/// GPU's vector too. Operator: `spillway::all_gather_`.
void all_gather_(const at::Tensor& vector, const Comm& comm);

/// Copies the tensors of rank `root` to every rank in `members`, which contains root and is the same list on each
/// member. Other ranks return at once. Tensors are dense, of any type, all on the CPU or on one GPU; they are grouped
/// as in allreduce_. Blocking. Throws CommError. Operator: `spillway::broadcast_`.
void broadcast_(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members);

}  // namespace spillway::ddl
