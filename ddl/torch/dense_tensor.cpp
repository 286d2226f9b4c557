#include "ddl/torch/dense_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>

#include <memory>

#include "core/category.h"

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

at::Tensor staging_bytes(int64_t count) {
  const CategoryScope staging(Category::staging);
  return at::empty({count}, at::TensorOptions(at::kByte));
}

at::Tensor elements(const at::Tensor& tensor, Range range) {
  return tensor.as_strided({range.size()}, {1}, tensor.storage_offset() + range.begin);
}

at::Tensor host_staging(int64_t count, at::ScalarType type, at::Device device) {
  const CategoryScope staging(Category::staging);
  return at::empty({count}, at::TensorOptions(type).pinned_memory(device.is_cuda()));
}

at::Tensor gpu_staging(int64_t count, at::ScalarType type, at::Device gpu) {
  const CategoryScope staging(Category::staging);
  return at::empty({count}, at::TensorOptions(type).device(gpu));
}

namespace {

/// A point of a stream.
class Recorded final : public QueuedWork {
 public:
  explicit Recorded(at::Device device) : gpu_(device.type()), device_(device), event_(device.type()) {
    event_.record(gpu_.getStream(device_));
  }
  bool done() override { return event_.query(); }
  void wait() override { event_.synchronize(); }
  void order_compute_after() override { event_.block(gpu_.getStream(device_)); }

 private:
  const c10::impl::VirtualGuardImpl gpu_;
  const at::Device device_;
  c10::Event event_;
};

}  // namespace

Ticket recorded(at::Device device) {
  return device.is_cpu() ? Ticket() : Ticket(std::make_shared<Recorded>(device));
}

StagingMemory::StagingMemory(int64_t size, at::Device device) {
  const size_t count = size;
  if (device.is_cuda()) {
    pinned = host_staging(size, at::kByte, device);
    bytes = bytes_of(pinned);
    return;
  }
  const CategoryScope staging(Category::staging);
  memory = c10::GetCPUAllocator()->allocate(count);
  bytes = {static_cast<std::byte*>(memory.get()), count};
}

// A copy finds out by a pinned tensor's own storage how long it uses that tensor.
at::Tensor StagingMemory::vector(int64_t count, at::ScalarType type) const {
  if (!pinned.defined()) return at::from_blob(bytes.data(), {count}, type);
  return pinned.narrow(0, 0, count * c10::elementSize(type)).view(type);
}

}  // namespace spillway::ddl
