// Unified Memory: one address for host and card, moved by explicit prefetches.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <unistd.h>

#include <stdexcept>

#include "core/bytes.h"
#include "core/device/cuda_library.h"
#include "core/error.h"

namespace spillway::cuda {
namespace {

/// The driver's own unit.
constexpr int64_t kLargePageBytes = 2 << 20;

/// Places of memory as CUDA 13 writes them.
cudaMemLocation place(Side side, c10::DeviceIndex index) {
  cudaMemLocation location{};
  location.type = side == Side::device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
  location.id = side == Side::device ? index : 0;
  return location;
}

/// Whoever used the memory on the host side is done; what is queued on the card may not be.
void release(char* data, int64_t) {
  C10_CUDA_IGNORE_ERROR(cudaDeviceSynchronize());
  C10_CUDA_IGNORE_ERROR(cudaFree(data));
}

}  // namespace

/// As much as card and host could hold together, the host giving half of what it has.
MemoryRange reserve_managed(int index) try {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  int can_page = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&can_page, cudaDevAttrConcurrentManagedAccess, index));
  if (!can_page)
    throw std::runtime_error(str("cuda:", index, " and its driver cannot page it (concurrentManagedAccess is 0)"));
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const int64_t host = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  const int64_t bytes = round_up(static_cast<int64_t>(total) + host / 2, kLargePageBytes);
  void* data = nullptr;
  C10_CUDA_CHECK(cudaMallocManaged(&data, static_cast<size_t>(bytes), cudaMemAttachGlobal));
  MemoryRange range(static_cast<char*>(data), bytes, &release);
  // Born on the card, and drawn back there by its kernels. Weights are not advised to be read mostly: an optimizer
  // writes all of them in every step, which throws the second copies away, and meanwhile they would count twice.
  C10_CUDA_CHECK(cudaMemAdvise(data, static_cast<size_t>(bytes), cudaMemAdviseSetPreferredLocation,
                               place(Side::device, static_cast<c10::DeviceIndex>(index))));
  return range;
} catch (const c10::Error& error) {
  throw std::runtime_error(error.what_without_backtrace());
}

void prefetch(void* data, int64_t bytes, Side to, const c10::Stream& stream) {
  C10_CUDA_CHECK(cudaMemPrefetchAsync(data, static_cast<size_t>(bytes), place(to, stream.device_index()), /*flags=*/0,
                                      c10::cuda::CUDAStream(stream).stream()));
}

}  // namespace spillway::cuda
