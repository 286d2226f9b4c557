#include "ddl/torch/staging_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>

#include <memory>

#include "core/category.h"
#include "ddl/torch/tensor_elements.h"

namespace spillway::ddl {

at::Tensor staging_bytes(int64_t count) {
  const CategoryScope staging(Category::staging);
  return at::empty({count}, at::TensorOptions(at::kByte));
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
