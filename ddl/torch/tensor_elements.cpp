#include "ddl/torch/tensor_elements.h"

namespace spillway::ddl {

void check_dense(const at::Tensor& tensor, const char* operation) {
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "[ddl] ", operation, ": a tensor is on ", tensor.device(),
              "; allowed: cpu and cuda");
  TORCH_CHECK(tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(), "[ddl] ", operation,
              ": a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
              " is not dense; allowed: tensors whose elements fill their memory, in any order");
}

void check_one_device(at::TensorList tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK(tensor.device() == tensors[0].device(), "[ddl] ", operation, ": of ", tensors.size(),
                " tensors one is on ", tensors[0].device(), ", another on ", tensor.device(), "; allowed: one device");
}

Element element_of(const at::Tensor& tensor, const char* operation) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Element::float32;
    case at::kDouble:
      return Element::float64;
    case at::kHalf:
      return Element::float16;
    case at::kBFloat16:
      return Element::bfloat16;
    case at::kInt:
      return Element::int32;
    case at::kLong:
      return Element::int64;
    default:
      TORCH_CHECK(false, "[ddl] ", operation, ": a tensor is ", tensor.scalar_type(),
                  "; allowed: Float, Double, Half, BFloat16, Int, Long");
  }
}

Reduction reduction_of(int64_t number, const char* operation) {
  TORCH_CHECK(number >= 0 && number <= 3, "[ddl] ", operation, ": reduction is ", number,
              "; allowed: 0 (sum), 1 (average), 2 (maximum), 3 (minimum)");
  return static_cast<Reduction>(number);
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor elements(const at::Tensor& tensor, Range range) {
  return tensor.as_strided({range.size()}, {1}, tensor.storage_offset() + range.begin);
}

}  // namespace spillway::ddl
