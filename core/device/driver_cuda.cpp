// The CUDA library's driver, and its one entry.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/device/cuda_library.h"
#include "core/error.h"
#include "core/memory/own_gpu_memory.h"

namespace spillway::cuda {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

class Driver final : public CudaDriver {
 public:
  Driver(int index, TensorMemory& tensors)
      : index_(static_cast<c10::DeviceIndex>(index)),
        tensors_(tensors),
        compute_(c10::cuda::getCurrentCUDAStream(index_)) {
    const WrappedAllocator wrapped = wrap_allocator(index, tensors);
    native_ = static_cast<CUDAAllocator*>(wrapped.native);
    wrapper_ = wrapped.wrapper;
  }

  void* allocate(int64_t bytes) override {
    require_compute_stream();
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(index_);
    c10::cuda::CUDAGuard guard(index_);
    for (bool last : {false, true}) try {
        return native_->raw_alloc_with_stream(bytes, stream.stream());
      } catch (const c10::OutOfMemoryError&) {
        if (!last) native_->emptyCache();
      }
    return nullptr;
  }
  void require_compute_stream() const override {
    if (tensors_.paging() && c10::cuda::getCurrentCUDAStream(index_) != compute_)
      throw std::runtime_error(str("[cuda] an operator uses another stream of cuda:", static_cast<int>(index_),
                                   " than the one that was current when the Session opened; use one stream inside a "
                                   "Session"));
  }
  bool is_capturing() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;  // asked for each operator, so without a guard
    C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(index_).stream(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  MemoryRange reserve_managed() override { return cuda::reserve_managed(index_); }
  void bring(void* data, int64_t bytes) noexcept override {
    try {
      const c10::cuda::CUDAGuard guard(index_);
      prefetch(data, bytes, Side::device, c10::cuda::getCurrentCUDAStream(index_).unwrap());
    } catch (const c10::Error&) {  // the kernels fetch it themselves then
      (void)cudaGetLastError();
    }
  }
  /// Freeing may fail where another stream used the memory, because that takes an event. The memory is lost then.
  void deallocate(void* data) noexcept override try { native_->raw_delete(data); } catch (const std::exception& error) {
    std::fprintf(stderr, "[cuda] memory could not be given back: %s\n", error.what());
  }
  bool is_native(const c10::DataPtr& data) const override {
    return data.get() && data.device().index() == index_ && data.get_deleter() == native_->raw_deleter();
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    c10::cuda::CUDAGuard guard(index_);
    C10_CUDA_CHECK(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream(index_).stream()));
  }
  std::string pci_bus_id() const override {
    char id[32] = {};
    if (C10_CUDA_ERROR_HANDLED(cudaDeviceGetPCIBusId(id, sizeof id, index_)) == cudaSuccess) return id;
    (void)cudaGetLastError();
    return {};
  }
  void set_host_range(char* data, int64_t bytes) override {
    host_data_ = data;
    host_bytes_ = bytes;
    host_.reset();
    // A Session opens here: its stream is the compute stream from now on.
    compute_ = c10::cuda::getCurrentCUDAStream(index_);
    marks_ = make_marks(compute_.unwrap());
  }
  /// Makes a lane. The host memory stays pinned as long as a lane exists.
  std::unique_ptr<Timeline> make_timeline(const std::string&) override {
    std::shared_ptr<PinnedRange> host = host_.lock();
    if (!host && host_data_) host_ = host = std::make_shared<PinnedRange>(host_data_, host_bytes_);
    if (!marks_) marks_ = make_marks(compute_.unwrap());
    return cuda::make_timeline(marks_, std::move(host));
  }
  std::unique_ptr<ComputeClock> make_clock() override { return cuda::make_clock(marks_); }
  void warm_up() override {
    const c10::cuda::CUDAGuard guard(index_);
    const at::AutoGradMode with_gradients(true);
    const auto options = at::TensorOptions(at::kFloat).device(c10::Device(c10::kCUDA, index_));
    const at::Tensor weight = at::ones({64, 64}, options).requires_grad_();
    at::mm(at::ones({64, 64}, options), weight).sum().backward();
    const at::Tensor filter = at::ones({8, 8, 3, 3, 3}, options).requires_grad_();
    at::conv3d(at::ones({1, 8, 8, 8, 8}, options), filter).sum().backward();
    C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(index_).stream()));
  }
  int64_t bytes_outside() override {
    c10::cuda::CUDAGuard guard(index_);
    // The loop repeats until the reserved bytes are equal before and after the query. Otherwise a segment that another
    // thread allocated or freed in between would be counted as a library's memory.
    for (int64_t before = reserved_bytes();;) {
      const int64_t held = held_bytes(before), after = reserved_bytes();
      if (after == before) return held - after;
      before = after;
    }
  }
  c10::Allocator* allocator() override { return wrapper_; }

 private:
  /// Returns the bytes that this process holds on the GPU, or those of all processes (HeldGpuMemory).
  int64_t held_bytes(int64_t reserved) {
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));  // also makes the context, which NVML names the process by
    const HeldGpuMemory::Look now{reserved, static_cast<int64_t>(total - free)};
    if (!held_) held_.emplace(OwnGpuMemory::find(pci_bus_id(), reserved), now);
    return held_->bytes(now);
  }
  int64_t reserved_bytes() const {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return native_->getDeviceStats(index_).reserved_bytes[kAll].current;
  }

  const c10::DeviceIndex index_;
  TensorMemory& tensors_;
  c10::cuda::CUDAStream compute_;
  CUDAAllocator* native_ = nullptr;
  c10::Allocator* wrapper_ = nullptr;
  char* host_data_ = nullptr;
  int64_t host_bytes_ = 0;
  std::weak_ptr<PinnedRange> host_;
  std::shared_ptr<ComputeMarks> marks_;
  std::optional<HeldGpuMemory> held_;
};

/// Selects expandable segments, because fragmented memory holds fewer tensors. A user's own setting stays.
void use_expandable_segments() {
  const std::string set = c10::CachingAllocator::getAllocatorSettings();
  if (set.find("expandable_segments") != std::string::npos) return;
  c10::CachingAllocator::setAllocatorSettings(set + (set.empty() ? "" : ",") + "expandable_segments:True");
}

/// Without LibTorch's cache nobody knows which bytes of the GPU are tensors and which are libraries'.
void require_caching() {
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") || std::getenv("PYTORCH_NO_HIP_MEMORY_CACHING"))
    throw std::runtime_error("PYTORCH_NO_CUDA_MEMORY_CACHING is set; a budget needs LibTorch's caching allocator");
}

CudaDriver* open(int index, TensorMemory& tensors) {
  require_caching();
  const int count = +c10::cuda::device_count_ensure_non_zero();  // a number, not a character
  // LibTorch looks for its CUDA half only once, for example at its first random number.
  if (!at::globalContext().hasCUDA())
    throw std::runtime_error(
        "LibTorch was used before its CUDA half was loaded, and does not look for it again; open the "
        "Session (or spillway::open_device) first, or link libtorch_cuda.so");
  if (index >= count)
    throw std::runtime_error(str("there is no cuda:", index, "; this machine has ", count, " GPU(s)"));
  use_expandable_segments();
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));  // the caller's current GPU stays
  at::globalContext().setBenchmarkCuDNN(false);  // it would size workspaces by the free memory
  return new Driver(index, tensors);
}

}  // namespace
}  // namespace spillway::cuda

extern "C" __attribute__((visibility("default"))) spillway::CudaDriver* spillway_open_cuda_driver(
    int index, spillway::TensorMemory* tensors, std::string* error) {
  try {
    return spillway::cuda::open(index, *tensors);
  } catch (const c10::Error& failed) {
    *error = failed.what_without_backtrace();
    return nullptr;
  } catch (const std::exception& failed) {
    *error = failed.what();
    return nullptr;
  }
}
