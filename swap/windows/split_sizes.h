/// When operators run in windows, and how large windows are.
#pragma once
#include <cstdint>

namespace spillway {

inline constexpr int64_t kDefaultSplitBytes = 224 << 20;

/// When operators are split, and how finely.
///
/// The decision looks at shapes alone, never at the budget or at what is resident, so results do not depend on the
/// budget. Elementwise operators, norms, pools, nearest upsampling, copies and concatenation give the bits of the whole
/// operator. Convolutions do going forward, but for rare shapes whose windows oneDNN adds up in another order (all of
/// 201 random ones with AVX-512, most with AVX2); windows are made so that LibTorch takes the same kernel. Their
/// gradients are sums over windows in a fixed order, and differ from the whole operator's by rounding.
struct WindowSizes {
  /// An operator is split when what it could use window by window has more bytes than this: its large tensors, and
  /// what a convolution's kernel makes of them.
  int64_t split_bytes;
  /// Bytes of an operator's tensors in one window, about; a window is at least one plane, channel or slice.
  int64_t window_bytes() const { return split_bytes / 4; }
};

}  // namespace spillway
