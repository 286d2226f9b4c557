/// What the operators need of tensors: their bytes, if those are all there is to them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <span>

#include "ddl/element.h"

namespace spillway::ddl {

/// Throws unless the tensor is on the CPU and its elements fill its memory, in any order.
void check_dense(const at::Tensor& tensor, const char* operation);
/// Throws for a type that is not reduced.
Element element_of(const at::Tensor& tensor, const char* operation);
/// Throws for a number that stands for none.
Reduction reduction_of(int64_t number, const char* operation);
/// Of a dense tensor, in the order of its memory.
std::span<std::byte> bytes_of(const at::Tensor& tensor);
/// Counted as staging.
at::Tensor staging_bytes(int64_t count);

/// For messages that outlive an operator: memory from LibTorch's allocator, which a budget counts (as staging), but no
/// storage, which could leave the device under a message.
struct StagingMemory {
  StagingMemory() = default;
  explicit StagingMemory(int64_t size);

  c10::DataPtr memory;
  std::span<std::byte> bytes;
};

}  // namespace spillway::ddl
