/// The elements of dense tensors, as the operators need them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Throws unless the tensor is on the CPU or a GPU and its elements fill its memory, in any order.
void check_dense(const at::Tensor& tensor, const char* operation);
/// Throws, naming two of them, unless all are on one device.
void check_one_device(at::TensorList tensors, const char* operation);
/// Returns the type of the tensor's elements. Throws for a type that is not reduced.
Element element_of(const at::Tensor& tensor, const char* operation);
/// Returns the reduction that a number stands for. Throws for a number that stands for none.
Reduction reduction_of(int64_t number, const char* operation);
/// Returns the number that stands for a reduction.
inline int64_t number_of(Reduction reduction) {
  return static_cast<int64_t>(reduction);
}
/// Returns the bytes of a dense tensor, in the order of its memory.
std::span<std::byte> bytes_of(const at::Tensor& tensor);
/// Returns some elements of a dense tensor, in the order of its memory.
at::Tensor elements(const at::Tensor& tensor, Range range);

}  // namespace spillway::ddl
