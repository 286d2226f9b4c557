/// The collectives of torch.distributed over a communicator, each of which has ended when it returns.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ddl/comm/element.h"
#include "ddl/torch/comm.h"

namespace spillway::ddl {

// All ranks call the same function with tensors of the same types and sizes. Tensors may have any strides; those that
// do not fill their memory, or are on a GPU where the transport needs the host, go through a copy. Outputs may be
// inputs; other overlaps of the two are refused where all ranks' inputs are gathered on all. All throw CommError.
// Tensors that do not suit, and memory that cannot be had, are refused by another error before the first message. A
// call with tensors that do not suit counts as made (Communicator::next_sequence()). So when this rank goes on, its
// next call is not taken for the one that other ranks have begun, and all throw CommError.

/// Returns the reduction that a number of c10d::ReduceOp stands for. Throws, naming it, for those that Spillway lacks.
Reduction reduction_of_c10d(int op);

/// Replaces every tensor by the reduction of all ranks' tensors. Besides the types of Element, takes bool, 8- and
/// 16-bit integers, which are reduced as 32-bit ones, and complex numbers, of which sums and averages exist.
void reduce_on_all(const std::vector<at::Tensor>& tensors, const Comm& comm, Reduction reduction);
/// Replaces the tensor on rank `root` by the reduction. Other ranks keep theirs.
void reduce_on_root(const at::Tensor& tensor, const Comm& comm, int root, Reduction reduction);
/// Copies rank `root`'s tensors to all ranks.
void broadcast_from(const std::vector<at::Tensor>& tensors, const Comm& comm, int root);
/// Fills `outputs[r]`, one for each rank, with rank r's `input`. Outputs may be of other shapes. Inputs of different
/// sizes take a broadcast each.
void gather_on_all(const std::vector<at::Tensor>& outputs, const at::Tensor& input, const Comm& comm);
/// Fills `output` with all ranks' inputs, one behind another.
void gather_on_all(const at::Tensor& output, const at::Tensor& input, const Comm& comm);
/// Fills `output` with the reduction of all ranks' `inputs[rank()]`. Inputs may differ in size from rank to rank.
void reduce_parts(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Comm& comm,
                  Reduction reduction);
/// Fills `output` with the reduction of all ranks' parts rank() of `input`, where parts lie one behind another.
void reduce_parts(const at::Tensor& output, const at::Tensor& input, const Comm& comm, Reduction reduction);
/// Fills `outputs[r]` on rank `root` with rank r's `input`. Other ranks give no outputs.
void gather_on_root(const std::vector<at::Tensor>& outputs, const at::Tensor& input, const Comm& comm, int root);
/// Fills `output` with rank `root`'s `inputs[rank()]`. Other ranks give no inputs.
void scatter_from(const at::Tensor& output, const std::vector<at::Tensor>& inputs, const Comm& comm, int root);
/// Fills `outputs[r]` with rank r's `inputs[rank()]`. Sizes may differ from pair to pair.
void exchange(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const Comm& comm);

}  // namespace spillway::ddl
