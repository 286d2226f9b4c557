/// The bytes that a window of a tensor covers, in its page and in the memory that it is copied from or to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/strided_runs.h"

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

  int64_t bytes() const { return out_of_page().bytes(); }
  /// Returns the runs that copy the window from its page at `page_offset_bytes` to memory, or from memory to the page.
  StridedRuns out_of_page() const;
  StridedRuns into_page() const;
  /// Returns the same window of a page that holds its bytes alone, one run after another.
  WindowCopy packed() const;

  /// Calls `visit(page_offset, memory_offset)` for every run, in order.
  template <class Visit>
  void for_each_run(Visit&& visit) const {
    out_of_page().for_each_run([&](int64_t memory, int64_t page) { visit(page_offset_bytes + page, memory); });
  }
};

/// One dimension of a box of elements that is copied between two strided layouts. Element (i, j, …) lies at the offset
/// plus i·strides[0] + j·strides[1] + … elements. The runs that copy the box are as long as both layouts allow, and
/// they have as few dimensions. They follow the order of the dimensions given, so callers put the one with the smallest
/// stride last.
struct StridedDimension {
  int64_t size;
  int64_t page_stride;
  int64_t memory_stride;
};
WindowCopy make_window_copy(int64_t element_bytes, int64_t page_offset, std::vector<StridedDimension> dimensions);

}  // namespace spillway::swap
