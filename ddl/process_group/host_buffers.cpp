#include "ddl/process_group/host_buffers.h"

#include <ATen/ops/empty.h>

namespace spillway::ddl {

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous().cpu();
}

at::Tensor host_memory_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor host_buffer(const at::Tensor& tensor) {
  const bool is_itself = tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  return is_itself ? tensor : host_memory_like(tensor);
}

void give_back(const at::Tensor& buffer, const at::Tensor& tensor) {
  if (!buffer.is_same(tensor)) tensor.copy_(buffer);
}

}  // namespace spillway::ddl
