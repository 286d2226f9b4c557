#include "swap/tiers/window_copy.h"

#include <utility>

namespace spillway::swap {

StridedRuns WindowCopy::out_of_page() const {
  StridedRuns runs{.run_bytes = run_bytes};
  for (const Dimension& d : dimensions)
    runs.dimensions.push_back(
        {d.count, /*destination_stride=*/d.memory_stride_bytes, /*source_stride=*/d.page_stride_bytes});
  return runs;
}

StridedRuns WindowCopy::into_page() const {
  StridedRuns runs = out_of_page();
  for (StridedRuns::Dimension& d : runs.dimensions) std::swap(d.destination_stride, d.source_stride);
  return runs;
}

WindowCopy WindowCopy::packed() const {
  WindowCopy copy = *this;
  copy.page_offset_bytes = 0;
  int64_t bytes = run_bytes;
  for (size_t d = dimensions.size(); d-- > 0;) {
    copy.dimensions[d].page_stride_bytes = bytes;
    bytes *= dimensions[d].count;
  }
  return copy;
}

WindowCopy make_window_copy(int64_t element_bytes, int64_t page_offset, std::vector<StridedDimension> dimensions) {
  WindowCopy copy{.page_offset_bytes = page_offset * element_bytes, .run_bytes = element_bytes, .dimensions = {}};
  std::erase_if(dimensions, [](const StridedDimension& d) { return d.size == 1; });
  int64_t run = 1;
  while (!dimensions.empty() && dimensions.back().page_stride == run && dimensions.back().memory_stride == run) {
    run *= dimensions.back().size;
    dimensions.pop_back();
  }
  copy.run_bytes *= run;
  for (const StridedDimension& d : dimensions) {
    const int64_t page_stride = d.page_stride * element_bytes, memory_stride = d.memory_stride * element_bytes;
    WindowCopy::Dimension* outer = copy.dimensions.empty() ? nullptr : &copy.dimensions.back();
    if (outer && outer->page_stride_bytes == d.size * page_stride &&
        outer->memory_stride_bytes == d.size * memory_stride)
      *outer = {outer->count * d.size, page_stride, memory_stride};
    else
      copy.dimensions.push_back({d.size, page_stride, memory_stride});
  }
  return copy;
}

}  // namespace spillway::swap
