#include "runtime/planning/largest_edge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace spillway::runtime {

LargestEdge::LargestEdge(int64_t step, int64_t limit, Measure measure)
    : step_(step), limit_(limit), measure_(std::move(measure)) {
  if (step < 1 || limit < step)
    throw BadRequest(str("LargestEdge: edges in steps of ", step, " up to ", limit, "; allowed is at least one step"));
}

int64_t LargestEdge::within(int64_t budget_bytes, int64_t EdgeNeed::*bytes) {
  int64_t fits = 0, over = limit_ / step_ + 1;  // in steps
  while (over - fits > 1) {
    const int64_t middle = (fits + over) / 2;
    (need(middle * step_).*bytes <= budget_bytes ? fits : over) = middle;
  }
  return fits * step_;
}

const EdgeNeed& LargestEdge::need(int64_t edge) {
  auto known = measured_.find(edge);
  if (known == measured_.end()) known = measured_.emplace(edge, measure_(edge)).first;
  return known->second;
}

int64_t edge_for_memory(int64_t memory_bytes, int64_t peak_bytes, int64_t edge, int64_t step) {
  const double larger = std::cbrt(static_cast<double>(memory_bytes) / static_cast<double>(peak_bytes));
  const auto most = static_cast<int64_t>(larger * static_cast<double>(edge));
  return std::max(step, most / step * step);
}

}  // namespace spillway::runtime
