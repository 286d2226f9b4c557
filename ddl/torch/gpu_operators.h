/// The operators for tensors of GPUs.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <span>

#include "ddl/comm/element.h"
#include "ddl/torch/comm.h"
#include "ddl/torch/gpu_backend.h"

namespace spillway::ddl {

/// True when the GPUs' network does that reduction. It does sums and averages, with 16-bit floats in float32 through
/// all levels. It does maxima and minima of integers alone, because the library's maxima and minima of floats lose NaN.
/// All else is staged on the host, so it has the bits of the CPU's allreduce.
bool reduces_by_nccl(Element element, Reduction reduction);

/// Does the work of the operator of its name, as the functions below do. `tensors` are on one device, one of `gpus`,
/// whose ranks are those of `comm`. Tensors go 8 MiB at a time through the GPUs' network, with so much memory of the
/// GPU (three times as much for 16-bit floats). Or they go through as much pinned memory of the host and the CPU's
/// operator. The work runs after the work that the current stream holds, and before the work that it is given later.
/// By the network all ranks get the same bits. The order of a sum is the library's and may depend on its size and
/// place. reduce_on_gpus and reduce_scatter_on_gpus have the bits of allreduce_on_gpus of the vector alone, because
/// they call the library as it does. reduce_on_gpus also moves as much as allreduce_on_gpus. reduce_scatter_on_gpus and
/// all_gather_on_gpus are its halves, and each moves as much as half an allreduce.
void allreduce_on_gpus(at::TensorList tensors, const Comm& comm, GpuBackend& gpus, Reduction reduction);
void broadcast_on_gpus(at::TensorList tensors, const Comm& comm, GpuBackend& gpus, int root,
                       std::span<const int> members);
void reduce_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus, at::IntArrayRef ends,
                    at::IntArrayRef owners, Reduction reduction);
void reduce_scatter_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus, Reduction reduction);
void all_gather_on_gpus(const at::Tensor& vector, const Comm& comm, GpuBackend& gpus);

/// Registers these functions as the operators for tensors of GPUs.
void add_gpu_operators(torch::Library& library);

}  // namespace spillway::ddl
