#include "swap/tiers/window_copy.h"

namespace spillway::swap {

WindowCopy make_window_copy(int64_t element_bytes, int64_t page_offset, std::vector<StridedDimension> dimensions) {
  WindowCopy copy{.page_offset_bytes = page_offset * element_bytes, .run_bytes = element_bytes, .dimensions = {}};
  std::erase_if(dimensions, [](const StridedDimension& d) { return d.size == 1; });
  int64_t run = 1;
  while (!dimensions.empty() && dimensions.back().page_stride == run && dimensions.back().memory_stride == run) {
    run *= dimensions.back().size;
    dimensions.pop_back();
  }
  copy.run_bytes *= run;
  for (const StridedDimension& d : dimensions)
    copy.dimensions.push_back({d.size, d.page_stride * element_bytes, d.memory_stride * element_bytes});
  return copy;
}

}  // namespace spillway::swap
