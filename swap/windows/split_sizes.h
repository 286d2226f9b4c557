/// The sizes from which operators run in windows, and the sizes of windows.
#pragma once
#include <cstdint>

namespace spillway {

/// The size of tensors above which operators run in windows by default.
inline constexpr int64_t kDefaultSplitBytes = 224 << 20;

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
