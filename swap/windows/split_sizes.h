/// The sizes from which operators run in windows, and the sizes of windows.
#pragma once
#include <cstdint>

namespace spillway {

/// The sizes above which operators run in windows by default, on the CPU and on a GPU. On a GPU windows are copies
/// through the memory that computes: a U-Net whose operators above 224 MiB run in windows takes a quarter longer there.
inline constexpr int64_t kDefaultSplitBytes = 224 << 20;
inline constexpr int64_t kDefaultGpuSplitBytes = int64_t{8} << 30;
/// In place of a size: the default of the device.
inline constexpr int64_t kSplitByDevice = 0;

/// Returns `split_bytes`, or the device's default in place of kSplitByDevice.
constexpr int64_t split_bytes_on(bool on_gpu, int64_t split_bytes) {
  if (split_bytes != kSplitByDevice) return split_bytes;
  return on_gpu ? kDefaultGpuSplitBytes : kDefaultSplitBytes;
}

/// The sizes that decide when operators are split, and how finely.
///
/// The decision looks at shapes alone, never at the budget or at resident bytes, so results do not depend on the
/// budget. Elementwise operators, norms, pools, nearest upsampling, copies and concatenation give the bits of the whole
/// operator. Convolutions do so going forward (all of 201 random ones with AVX-512, most with AVX2), except rare shapes
/// whose windows oneDNN adds up in another order. Windows are made so that LibTorch takes the same kernel. Gradients of
/// convolutions are sums over windows in a fixed order, and differ from the whole operator's by rounding.
struct WindowSizes {
  /// The bytes above which an operator is split. They count the data that it could use window by window: its large
  /// tensors, and the data that a convolution's kernel makes of them.
  int64_t split_bytes;
  /// Returns the approximate bytes of an operator's tensors in one window; a window is at least one plane, channel or
  /// slice.
  int64_t window_bytes() const { return split_bytes / 4; }
};

}  // namespace spillway
