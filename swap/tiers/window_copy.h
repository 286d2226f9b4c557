/// The bytes that a window of a tensor covers, in its page and in the memory that it is copied from or to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::swap {

/// Equal runs of bytes at regular distances on both sides, the first run at offset 0 of `memory` and at
/// `page_offset_bytes` of the page. A box of a tensor of any layout is such a set of runs.
struct WindowCopy {
  struct Dimension {
    int64_t count;
    int64_t page_stride_bytes;
    int64_t memory_stride_bytes;
  };
  int64_t page_offset_bytes = 0;
  int64_t run_bytes = 0;
  std::vector<Dimension> dimensions;  ///< dimensions of runs, outermost first

  int64_t bytes() const {
    int64_t total = run_bytes;
    for (const Dimension& d : dimensions) total *= d.count;
    return total;
  }

  /// Calls `visit(page_offset, memory_offset)` for every run, in order.
  template <class Visit>
  void for_each_run(Visit&& visit, size_t depth = 0, int64_t page = 0, int64_t memory = 0) const {
    if (depth == dimensions.size()) return visit(page_offset_bytes + page, memory);
    const Dimension& d = dimensions[depth];
    for (int64_t i = 0; i < d.count; ++i)
      for_each_run(visit, depth + 1, page + i * d.page_stride_bytes, memory + i * d.memory_stride_bytes);
  }
};

/// One dimension of a box of elements that is copied between two strided layouts. Element (i, j, …) lies at the offset
/// plus i·strides[0] + j·strides[1] + … elements. The runs that copy the box are as long as both layouts allow. They
/// follow the order of the dimensions given, so callers put the one with the smallest stride last.
struct StridedDimension {
  int64_t size;
  int64_t page_stride;
  int64_t memory_stride;
};
WindowCopy make_window_copy(int64_t element_bytes, int64_t page_offset, std::vector<StridedDimension> dimensions);

}  // namespace spillway::swap
