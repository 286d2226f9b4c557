/// When operators run in windows, and how large windows are.
#pragma once
#include <cstdint>

namespace spillway {

inline constexpr int64_t kDefaultSplitBytes = 96 << 20;

/// When operators are split, and how finely.
///
/// The decision looks at shapes alone, never at the budget or at what is resident, so results do not depend on the
/// budget. Elementwise operators, norms, pools, nearest upsampling, copies and concatenation give the bits of the whole
/// operator. Convolutions are exact going forward as long as LibTorch takes the same kernel for a window as for the
/// whole (windows are made so); their gradients are sums over windows in a fixed order, and differ from the whole
/// operator's by rounding.
struct WindowSizes {
  /// An operator is split when the tensors that it could use window by window have more bytes than this.
  int64_t split_bytes;
  /// Bytes of all of them in one window, about; a window is at least one plane, channel or slice.
  int64_t window_bytes() const { return split_bytes / 2; }
};

}  // namespace spillway
