/// The CUDA functions that Spillway needs, as an interface. A library implements it and is loaded only where there is a
/// driver.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>
#include <string>

#include "core/compute_clock.h"
#include "core/memory/memory_range.h"
#include "core/timeline.h"

namespace spillway {

/// The object that LibTorch's CUDA allocator asks for memory, once that allocator is wrapped. Called on any thread,
/// without the native allocator's lock.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;
  virtual c10::DataPtr allocate(size_t bytes) = 0;
  virtual c10::DeleterFnPtr deleter() const = 0;
  /// Returns true when `data`, which has that deleter, is managed memory, which the native allocator does not know.
  virtual bool is_managed(const c10::DataPtr& data) const = 0;
  /// Returns memory without a DataPtr, for kernels that ask for it in this form.
  virtual void* allocate_raw(size_t bytes) = 0;
  /// Releases memory of allocate_raw(). Returns false when the memory is from elsewhere.
  virtual bool release_raw(void* data) noexcept = 0;
  /// Returns true when a Session is open, so that all operators must use one stream.
  virtual bool paging() const = 0;
};

/// One CUDA device. Its compute stream is the one that is current when the driver or a Session is opened.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;
  /// Returns memory of LibTorch's native caching allocator, from the current stream's pool. Empties the allocator's
  /// cache and tries again before it returns nullptr. Throws std::runtime_error while a Session is open and the current
  /// stream is not the compute stream.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;
  /// Returns true when the native allocator made the memory.
  virtual bool is_native(const c10::DataPtr& data) const = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Reserves managed memory that prefers the GPU: only addresses until they are used. Releasing it waits until no copy
  /// or operator uses it any more. Throws std::runtime_error when this GPU cannot page, or has no addresses.
  virtual MemoryRange reserve_managed() = 0;
  /// Brings managed memory to the GPU in the order of compute, because it is about to be written there.
  virtual void bring(void* data, int64_t bytes) noexcept = 0;
  /// Throws as allocate() does when the current stream is not the compute stream. Cost: no call of the CUDA runtime.
  virtual void require_compute_stream() const = 0;
  /// Returns true while a CUDA graph captures the calling thread's current stream. Cost: one call of the CUDA runtime.
  virtual bool is_capturing() const = 0;
  /// Returns the GPU's PCI address: `0000:3b:00.0`. Empty when it is not known.
  virtual std::string pci_bus_id() const = 0;
  /// Sets the host memory that lanes made from now on pin. They pin it chunk by chunk, when a copy first uses a chunk.
  virtual void set_host_range(char* data, int64_t bytes) = 0;
  virtual std::unique_ptr<Timeline> make_timeline(const std::string& lane) = 0;
  virtual std::unique_ptr<ComputeClock> make_clock() = 0;
  /// Runs a small product and a small convolution, forward and backward. Libraries take their first memory then, and it
  /// shows that LibTorch can run a backward on this GPU. Throws std::exception when it cannot.
  virtual void warm_up() = 0;
  /// Returns the bytes that the GPU holds beyond the native allocator's memory, other processes' included.
  virtual int64_t bytes_outside() = 0;
  /// Returns the allocator that LibTorch has been given: the native one, wrapped.
  virtual c10::Allocator* allocator() = 0;
};

/// The library's one entry. It returns a driver for the GPU `index` that asks `tensors` for tensors' memory. On failure
/// it returns nullptr and sets `error`. It may be called once per process.
using OpenCudaDriver = CudaDriver* (*)(int index, TensorMemory* tensors, std::string* error);
inline constexpr const char* kOpenCudaDriver = "spillway_open_cuda_driver";

}  // namespace spillway
