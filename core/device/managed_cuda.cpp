// Unified Memory: one address for host and GPU, moved by explicit prefetches.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "core/bytes.h"
#include "core/device/cuda_library.h"
#include "core/error.h"
#include "core/host/memory_limit.h"

namespace spillway::cuda {
namespace {

/// The size of the driver's own pages.
constexpr int64_t kLargePageBytes = 2 << 20;

/// Returns a place of memory in the form that CUDA 13 takes.
cudaMemLocation place(Side side, c10::DeviceIndex index) {
  cudaMemLocation location{};
  location.type = side == Side::device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
  location.id = side == Side::device ? index : 0;
  return location;
}

/// Waits for the range's GPU, which need not be the thread's current one, and frees the memory. The host's use of the
/// memory is over, but work queued on the GPU may remain. Does not throw, because destructors come here.
void release(char* data, int64_t) {
  cudaPointerAttributes range{};
  int current = -1;
  C10_CUDA_IGNORE_ERROR(cudaPointerGetAttributes(&range, data));
  C10_CUDA_IGNORE_ERROR(cudaGetDevice(&current));
  const bool is_elsewhere = range.type == cudaMemoryTypeManaged && range.device != current;
  if (is_elsewhere) C10_CUDA_IGNORE_ERROR(cudaSetDevice(range.device));
  C10_CUDA_IGNORE_ERROR(cudaDeviceSynchronize());
  C10_CUDA_IGNORE_ERROR(cudaFree(data));
  if (is_elsewhere && current >= 0) C10_CUDA_IGNORE_ERROR(cudaSetDevice(current));
}

/// True when the user wants managed memory beyond what the GPU has free.
bool may_oversubscribe() {
  const char* wanted = std::getenv("SPILLWAY_UNIFIED_OVERSUBSCRIBE");
  return wanted && std::string_view(wanted) != "" && std::string_view(wanted) != "0";
}

}  // namespace

/// Reserves as many bytes as the GPU and half of the host memory that this process may use could hold together, but no
/// more than the GPU has free, unless may_oversubscribe(): a program that uses more can hang the GPU for all.
MemoryRange reserve_managed(int index) try {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  int can_page = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&can_page, cudaDevAttrConcurrentManagedAccess, index));
  if (!can_page)
    throw std::runtime_error(str("cuda:", index, " and its driver cannot page it (concurrentManagedAccess is 0)"));
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const int64_t host = share_for_pages(host_memory_limit(), /*pinned=*/true, /*ranks=*/1).bytes;
  const int64_t together = static_cast<int64_t>(total) + host;
  const int64_t wanted = may_oversubscribe() ? together : std::min(together, static_cast<int64_t>(free));
  const int64_t bytes = wanted / kLargePageBytes * kLargePageBytes;
  if (bytes == 0) throw std::runtime_error(str("cuda:", index, " has no memory free"));
  void* data = nullptr;
  C10_CUDA_CHECK(cudaMallocManaged(&data, bytes, cudaMemAttachGlobal));
  MemoryRange range(static_cast<char*>(data), bytes, &release);
  // Pages start on the GPU, and its kernels bring them back there. Weights are not advised to be read mostly, because
  // an optimizer writes all of them in every step. Such a write discards the second copies, and until then they would
  // count twice.
  C10_CUDA_CHECK(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation,
                               place(Side::device, static_cast<c10::DeviceIndex>(index))));
  return range;
} catch (const c10::Error& error) {
  throw std::runtime_error(error.what_without_backtrace());
}

void prefetch(void* data, int64_t bytes, Side to, const c10::Stream& stream) {
  C10_CUDA_CHECK(cudaMemPrefetchAsync(data, bytes, place(to, stream.device_index()), /*flags=*/0,
                                      c10::cuda::CUDAStream(stream).stream()));
}

}  // namespace spillway::cuda
