/// The parts of the CUDA library, for each other.
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
/// Puts an allocator in front of LibTorch's that asks `tensors` for memory on the card `index`, and leaves everything
/// else to the native one. For the rest of the process: LibTorch keeps pointers to it.
WrappedAllocator wrap_allocator(int index, TensorMemory& tensors);

/// Managed memory whose preferred place is the card `index`. Throws std::runtime_error when that card cannot page.
MemoryRange reserve_managed(int index);
/// Moves managed memory to the stream's card or to the host, in the stream's order. Throws c10::Error.
void prefetch(void* data, int64_t bytes, Side to, const c10::Stream& stream);

/// Host memory that is pinned chunk by chunk, as copies use it first, and unpinned at its end. Thread-safe.
class PinnedRange {
 public:
  PinnedRange(char* data, int64_t bytes);
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  ~PinnedRange();
  /// How many of the `bytes` at `at` one copy may take: chunks are pinned one by one, and a copy must not cross from
  /// one to the next. Pins what they lie in. All of them for memory that is not of the range.
  int64_t pin(const void* at, int64_t bytes);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

/// What happened in the compute stream: operators, and waits for copies. Shared by the clock and the lanes.
class ComputeMarks;
std::shared_ptr<ComputeMarks> make_marks(c10::Stream compute);

std::unique_ptr<Timeline> make_timeline(std::shared_ptr<ComputeMarks> marks, std::shared_ptr<PinnedRange> host);
std::unique_ptr<ComputeClock> make_clock(std::shared_ptr<ComputeMarks> marks);

}  // namespace spillway::cuda
