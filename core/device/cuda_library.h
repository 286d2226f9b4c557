/// The internal interfaces between the parts of the CUDA library.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>

#include "core/device/cuda_driver.h"

namespace spillway::cuda {

/// LibTorch's own allocator and the one that now stands in front of it.
struct WrappedAllocator {
  c10::Allocator* native;
  c10::Allocator* wrapper;
};
/// Puts an allocator in front of LibTorch's. It asks `tensors` for memory on the GPU `index`, and leaves everything
/// else to the native allocator. It stays for the rest of the process, because LibTorch keeps pointers to it.
WrappedAllocator wrap_allocator(int index, TensorMemory& tensors);

/// Reserves managed memory whose preferred place is the GPU `index`. Throws std::runtime_error when that GPU cannot
/// page.
MemoryRange reserve_managed(int index);
/// Moves managed memory to the stream's GPU or to the host, in the stream's order. Throws c10::Error.
void prefetch(void* data, int64_t bytes, Side to, const c10::Stream& stream);

/// Host memory that is pinned chunk by chunk, when copies first use a chunk. Its destruction unpins it. Thread-safe.
class PinnedRange {
 public:
  PinnedRange(char* data, int64_t bytes);
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  ~PinnedRange();
  /// Returns how many of the `bytes` at `at` one copy may take, and pins the chunk that they lie in. Chunks are pinned
  /// one by one, and a copy must not cross from one to the next. Returns `bytes` for memory outside of the range.
  int64_t pin(const void* at, int64_t bytes);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

/// The marks in the compute stream: operators, and waits for copies. The clock and the lanes share them.
class ComputeMarks;
std::shared_ptr<ComputeMarks> make_marks(c10::Stream compute);

std::unique_ptr<Timeline> make_timeline(std::shared_ptr<ComputeMarks> marks, std::shared_ptr<PinnedRange> host);
std::unique_ptr<ComputeClock> make_clock(std::shared_ptr<ComputeMarks> marks);

}  // namespace spillway::cuda
