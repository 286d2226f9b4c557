/// Ways to carry out collectives of vectors that are on GPUs.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "benchmarks/allreduce/variant.h"
#include "ddl/torch/comm.h"

namespace spillway::tools {

/// Returns how vectors on GPUs are reduced: `NCCL 2.28.9, by levels 4x2`; `staged on the host: …`. Collective. Throws
/// CommError.
std::string decision(ddl::GpuBackend& gpus, c10::Device gpu, const Problem& problem);

/// Returns vectors on `gpu`, one of `gpus`, whose ranks are the same as `comm`'s. An allreduce has the way `levels`,
/// the operator allreduce_. Where `levels` goes by the GPUs' network, there is also `staged`, the same allreduce
/// through the host. Where the network itself reduces such vectors (no averages, no 16-bit floats), there is also
/// `nccl`, its own allreduce of all ranks at once. The other collectives have only their operator, called `tree` for a
/// broadcast, else `levels`. Only `nccl` can work out of place: the other ways copy the input first. Collective. Throws
/// CommError.
std::unique_ptr<Vectors> vectors_on_gpu(const ddl::Comm& comm, ddl::GpuBackend& gpus, c10::Device gpu,
                                        const Problem& problem);

}  // namespace spillway::tools
