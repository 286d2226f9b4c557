/// Memory of the host that stands for a tensor's elements while they travel.
#pragma once
#include <ATen/core/Tensor.h>

namespace spillway::ddl {

/// Returns the tensor's elements, from first to last in order of its dimensions, in the host's memory. A copy where the
/// tensor is elsewhere or not contiguous.
at::Tensor on_host(const at::Tensor& tensor);

/// Makes memory on the host for a tensor's elements, uninitialized.
at::Tensor host_memory_like(const at::Tensor& tensor);

/// Returns memory on the host for a tensor's elements: the tensor itself where it is there and contiguous.
at::Tensor host_buffer(const at::Tensor& tensor);

/// Copies a buffer to the tensor that it stands for, unless it is that tensor.
void give_back(const at::Tensor& buffer, const at::Tensor& tensor);

}  // namespace spillway::ddl
