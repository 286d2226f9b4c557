#include "swap/windows/tensor_layout.h"

#include <ATen/ATen.h>

#include <memory>
#include <numeric>

#include "core/memory/memory_range.h"

namespace spillway::swap {

std::vector<int64_t> memory_order(const at::Tensor& part) {
  std::vector<int64_t> order(part.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return part.stride(a) > part.stride(b); });
  return order;
}

std::vector<int64_t> packed_strides(const at::Tensor& part) {
  std::vector<int64_t> strides(part.dim());
  std::vector<int64_t> inside_out = memory_order(part);
  std::reverse(inside_out.begin(), inside_out.end());
  int64_t stride = 1;
  for (const int64_t d : inside_out) {
    strides[d] = stride;
    stride *= part.size(d);
  }
  return strides;
}

std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).memory_format(format)).strides().vec();
}

bool is_aligned_as_a_copy(const at::Tensor& part, c10::DeviceType device) {
  constexpr int64_t kMaxAlignment = 256;  // more than any kernel asks for; LibTorch's allocator gives 512
  return device == c10::kCPU || part.storage_offset() * part.element_size() % kMaxAlignment == 0;
}

at::Tensor shape_only_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device) {
  if (!device.is_cpu()) return at::empty_strided(sizes, strides, at::TensorOptions(type).device(device));
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  auto range = std::make_shared<MemoryRange>(reserve_memory(bytes));
  void* data = range->data();
  return at::for_blob(data, sizes).strides(strides).options(type).deleter([range](void*) {}).make_tensor();
}

at::Tensor shape_only_tensor(const at::Tensor& part) {
  return shape_only_tensor(part.sizes(), packed_strides(part), part.scalar_type(), part.device());
}

at::Tensor shape_only_tensor(at::IntArrayRef sizes, at::MemoryFormat format, at::ScalarType type, c10::Device device) {
  return shape_only_tensor(sizes, strides_of(sizes, format), type, device);
}

}  // namespace spillway::swap
