/// What Spillway needs of CUDA, as a library that is loaded only where there is a driver answers it.
#pragma once
#include <c10/core/Allocator.h>

#include <memory>
#include <string>

#include "core/compute_clock.h"
#include "core/memory/memory_range.h"
#include "core/timeline.h"

namespace spillway {

/// Who LibTorch's CUDA allocator asks, once it is wrapped. Called on any thread, without the native allocator's lock.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;
  virtual c10::DataPtr allocate(size_t bytes) = 0;
  virtual c10::DeleterFnPtr deleter() const = 0;
  /// Whether memory with that deleter is managed, so that the native allocator does not know it.
  virtual bool is_managed(const c10::DataPtr& data) const = 0;
  /// Memory without a DataPtr, for kernels that ask so.
  virtual void* allocate_raw(size_t bytes) = 0;
  /// False: the memory is none of allocate_raw().
  virtual bool release_raw(void* data) noexcept = 0;
  /// Whether a Session is open, so that all operators must use one stream.
  virtual bool paging() const = 0;
};

/// One CUDA device. Its compute stream is the one that is current when a lane is made.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;
  /// Memory of LibTorch's native caching allocator, of the current stream's pool. Its cache is emptied before the
  /// answer is nullptr. Throws std::runtime_error on another stream than compute's while a Session is open.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;
  /// Whether the native allocator made it.
  virtual bool is_native(const c10::DataPtr& data) const = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Managed memory, preferably on the card: addresses alone until they are used. Given back when no copy or operator
  /// uses it any more, for which it waits. Throws std::runtime_error when this card cannot page, or has no addresses.
  virtual MemoryRange reserve_managed() = 0;
  /// Brings managed memory to the card in compute's order: it is about to be written there.
  virtual void bring(void* data, int64_t bytes) noexcept = 0;
  /// Throws as allocate() does on another stream than compute's.
  virtual void require_compute_stream() const = 0;
  /// Where the card is: `0000:3b:00.0`. Empty when that is not known.
  virtual std::string pci_bus_id() const = 0;
  /// Lanes made from now on pin what they use of this host memory, chunk by chunk as it is used first.
  virtual void set_host_range(char* data, int64_t bytes) = 0;
  virtual std::unique_ptr<Timeline> make_timeline(const std::string& lane) = 0;
  virtual std::unique_ptr<ComputeClock> make_clock() = 0;
  /// What the card holds beyond the native allocator's memory, more than when the driver was opened.
  virtual int64_t bytes_outside() = 0;
  /// The allocator that LibTorch has been given: the native one, wrapped.
  virtual c10::Allocator* allocator() = 0;
};

/// The library's one entry: a driver for the card `index` whose tensors are `tensors`', or nullptr and what is wrong.
/// Once per process.
using OpenCudaDriver = CudaDriver* (*)(int index, TensorMemory* tensors, std::string* error);
inline constexpr const char* kOpenCudaDriver = "spillway_open_cuda_driver";

}  // namespace spillway
