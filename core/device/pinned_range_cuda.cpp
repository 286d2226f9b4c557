// Host memory that is pinned for copies.
#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <vector>

#include "core/bytes.h"
#include "core/device/cuda_library.h"

namespace spillway::cuda {
namespace {

/// The size of a chunk that is pinned at once. Pinning one takes a tenth of a second.
constexpr int64_t kChunkBytes = 128 << 20;
/// The number of refusals in a row after which no more is pinned.
constexpr int kMaxRefusals = 3;

}  // namespace

struct PinnedRange::State {
  char* data;
  int64_t bytes;
  std::mutex mutex;
  std::vector<bool> pinned;
  int refusals = 0;  ///< in a row

  int64_t end_of(int64_t chunk) const { return std::min(bytes, (chunk + 1) * kChunkBytes); }
};

PinnedRange::PinnedRange(char* data, int64_t bytes) : state_(new State{data, bytes, {}, {}}) {
  state_->pinned.resize((bytes + kChunkBytes - 1) / kChunkBytes);
}

PinnedRange::~PinnedRange() {
  for (size_t i = 0; i < state_->pinned.size(); ++i)
    if (state_->pinned[i]) C10_CUDA_IGNORE_ERROR(cudaHostUnregister(state_->data + i * kChunkBytes));
}

int64_t PinnedRange::pin(const void* at, int64_t bytes) {
  State& s = *state_;
  const int64_t begin = static_cast<const char*>(at) - s.data;
  if (begin < 0 || begin >= s.bytes) return bytes;
  const int64_t chunk = begin / kChunkBytes;
  const int64_t start = chunk * kChunkBytes;
  std::lock_guard lock(s.mutex);
  if (!s.pinned[chunk] && s.refusals < kMaxRefusals) {
    const cudaError_t error =
        C10_CUDA_ERROR_HANDLED(cudaHostRegister(s.data + start, s.end_of(chunk) - start, cudaHostRegisterPortable));
    if (error == cudaSuccess) {
      s.pinned[chunk] = true;
      s.refusals = 0;
    } else {
      (void)cudaGetLastError();
      // Copies stay correct, but are slower. One refusal may be for this moment only.
      if (++s.refusals == kMaxRefusals)
        std::fprintf(stderr, "[cuda] host memory beyond %s could not be pinned (%s); copies to it will be slow\n",
                     format_bytes(start).c_str(), cudaGetErrorString(error));
    }
  }
  return std::min(bytes, s.end_of(chunk) - begin);
}

}  // namespace spillway::cuda
