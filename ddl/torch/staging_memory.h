/// Memory for the bytes of collectives on their way.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/timeline.h"

namespace spillway::ddl {

/// Returns a vector of bytes, counted as staging.
at::Tensor staging_bytes(int64_t count);
/// Makes a vector on the host for data that comes from or goes to `device`. Where that is a GPU the vector is pinned,
/// and neither a GPU's nor the host's budget (of pages) counts it. Else it is counted as staging.
at::Tensor host_staging(int64_t count, at::ScalarType type, at::Device device);
/// Makes a vector on `gpu`, counted as staging.
at::Tensor gpu_staging(int64_t count, at::ScalarType type, at::Device gpu);
/// Returns a ticket for the work that `device`'s current stream holds by now; complete at once on the CPU.
Ticket recorded(at::Device device);

/// Memory for messages that outlive an operator. It comes from LibTorch's allocator, which a budget counts (as
/// staging). It has no storage, because a storage could leave the device under a message. Beside tensors of a GPU it is
/// pinned, as host_staging() is.
struct StagingMemory {
  StagingMemory() = default;
  explicit StagingMemory(int64_t size, at::Device device = at::kCPU);
  /// Returns a vector of the memory's first elements, which is valid while the memory lives.
  at::Tensor vector(int64_t count, at::ScalarType type) const;

  c10::DataPtr memory;
  at::Tensor pinned;
  std::span<std::byte> bytes;
};

}  // namespace spillway::ddl
