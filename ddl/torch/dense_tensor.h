/// What the operators need of tensors: their bytes, if those are all there is to them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <span>

#include "core/timeline.h"
#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Throws unless the tensor is on the CPU or a card and its elements fill its memory, in any order.
void check_dense(const at::Tensor& tensor, const char* operation);
/// Throws, naming two of them, unless all are on one device.
void check_one_device(at::TensorList tensors, const char* operation);
/// Throws for a type that is not reduced.
Element element_of(const at::Tensor& tensor, const char* operation);
/// Throws for a number that stands for none.
Reduction reduction_of(int64_t number, const char* operation);
/// Of a dense tensor, in the order of its memory.
std::span<std::byte> bytes_of(const at::Tensor& tensor);
/// Some elements of a dense tensor, in the order of its memory.
at::Tensor elements(const at::Tensor& tensor, Range range);
/// Counted as staging.
at::Tensor staging_bytes(int64_t count);
/// A vector on the host for what comes from or goes to `device`: pinned where that is a card, which neither a card's
/// nor the host's budget (of pages) counts; else counted as staging.
at::Tensor host_staging(int64_t count, at::ScalarType type, at::Device device);
/// A vector on `card`, counted as staging.
at::Tensor card_staging(int64_t count, at::ScalarType type, at::Device card);
/// What `device`'s current stream holds by now; complete at once on the CPU.
Ticket recorded(at::Device device);

/// For messages that outlive an operator: memory from LibTorch's allocator, which a budget counts (as staging), but no
/// storage, which could leave the device under a message. Beside tensors of a card: pinned, as host_staging() is.
struct StagingMemory {
  StagingMemory() = default;
  explicit StagingMemory(int64_t size, at::Device device = at::kCPU);
  /// Its first elements, while it lives.
  at::Tensor vector(int64_t count, at::ScalarType type) const;

  c10::DataPtr memory;
  at::Tensor pinned;
  std::span<std::byte> bytes;
};

}  // namespace spillway::ddl
