/// Collectives as dispatcher operators: whatever stands in the dispatcher makes their tensors resident like anyone's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ddl/comm/element.h"
#include "ddl/torch/comm.h"

namespace spillway::ddl {

/// Reduces every tensor over all ranks, in place; all ranks get the same bits. Dense, any shape, of any type of
/// Element, all on the CPU or on one card; every rank passes the same types, shapes and strides in the same order.
/// Blocking; on a card (card_operators.h) in the order of its current stream. Neighbours of one type
/// are fused through one staging buffer of at most `kFusionBytes`, so that many small ones cost few messages. 16-bit
/// floats are summed in float32 and rounded once; averages divide once, at the end. The operator is called once per
/// group of at most kFusionBytes or one larger tensor, so that a budget need only hold one group, its staging and
/// scratch of a few MiB at a time. Autograd does not see it; version counters do. Throws CommError. Operator:
/// `spillway::allreduce_`.
void allreduce_(at::TensorList tensors, const Comm& comm, Reduction reduction);

/// Reduces part i of `vector`, elements ends[i−1] … ends[i], on rank homes[i] alone: there it becomes what
/// allreduce_ makes of it, bit for bit; other ranks keep their own elements. The same parts on every rank.
/// Blocking. By levels. Scratch: some 10 MiB. On a card as allreduce_. Throws BadRequest, CommError. Operator:
/// `spillway::reduce_`.
void reduce_(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef homes,
             Reduction reduction);

/// The halves of an allreduce: replaces part rank() of `vector`, own_part(), by the reduction of all ranks' elements
/// there; other elements stay each rank's own. Dense, any shape (parts are of its memory, in order), any type of
/// Element, the same on every rank. Blocking. Bits as allreduce_'s of the vector alone. On a card as allreduce_.
/// Operator: `spillway::reduce_scatter_`. Throws BadRequest, CommError.
void reduce_scatter_(const at::Tensor& vector, const Comm& comm, Reduction reduction);
/// Replaces each rank's part by what that rank has there, on all ranks; a card's too. `spillway::all_gather_`.
void all_gather_(const at::Tensor& vector, const Comm& comm);

/// Copies the tensors of rank `root` to every rank in `members` (which contains root; the same list on each member;
/// other ranks return at once). Dense, any type, all on the CPU or on one card; grouped like allreduce_. Blocking.
/// Throws CommError. Operator: `spillway::broadcast_`.
void broadcast_(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members);

}  // namespace spillway::ddl
