/// The operators for tensors in the host's memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ddl/torch/comm.h"

namespace spillway::ddl {

// Each is the kernel of the operator of its name (comm.h); `reduction` is a Reduction's number.

void allreduce_on_host(at::TensorList tensors, const Comm& comm, int64_t reduction);
void broadcast_on_host(at::TensorList tensors, const Comm& comm, int64_t root, at::IntArrayRef members);
void reduce_on_host(const at::Tensor& vector, const Comm& comm, at::IntArrayRef ends, at::IntArrayRef owners,
                    int64_t reduction);
void reduce_scatter_on_host(const at::Tensor& vector, const Comm& comm, int64_t reduction);
void all_gather_on_host(const at::Tensor& vector, const Comm& comm);

}  // namespace spillway::ddl
