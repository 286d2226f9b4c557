// A double of libspillway_cuda.so: its one entry gives a double of the GPU, and fake_cuda_driver() tells tests which.
#include "tests/support/fake_cuda.h"

namespace {
constexpr int64_t kGpuBytes = int64_t{1} << 30;
spillway::testing::FakeCudaDriver* the_driver = nullptr;

/// LibTorch's allocator for the GPU, which asks Spillway for every tensor.
class Allocator final : public c10::Allocator {
 public:
  explicit Allocator(spillway::TensorMemory& tensors) : tensors_(tensors) {}
  c10::DataPtr allocate(size_t bytes) override { return tensors_.allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  spillway::TensorMemory& tensors_;
};
}  // namespace

extern "C" __attribute__((visibility("default"))) spillway::CudaDriver* spillway_open_cuda_driver(
    int, spillway::TensorMemory* tensors, std::string*) {
  the_driver = new spillway::testing::FakeCudaDriver(kGpuBytes);
  the_driver->for_tensors = new Allocator(*tensors);
  return the_driver;
}

extern "C" __attribute__((visibility("default"))) spillway::testing::FakeCudaDriver* fake_cuda_driver() {
  return the_driver;
}
