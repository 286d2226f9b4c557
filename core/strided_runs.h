/// Runs of bytes at regular distances, the way in which a box of a tensor lies in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway {

/// Equal runs of bytes at regular distances in two memories. The first run lies at offset 0 of both.
struct StridedRuns {
  /// One dimension of runs. Strides are in bytes.
  struct Dimension {
    int64_t count;
    int64_t destination_stride;
    int64_t source_stride;
  };
  int64_t run_bytes = 0;
  std::vector<Dimension> dimensions = {};  ///< outermost first; none: one run

  int64_t bytes() const {
    int64_t total = run_bytes;
    for (const Dimension& d : dimensions) total *= d.count;
    return total;
  }

  /// Calls `visit(destination_offset, source_offset)` for every run, in order.
  template <class Visit>
  void for_each_run(Visit&& visit) const {
    visit_runs(dimensions.size(), visit);
  }
  /// Calls `visit(destination_offset, source_offset)` for the first run of each innermost row of runs, in order: once
  /// for all runs of the last dimension together. There must be a dimension.
  template <class Visit>
  void for_each_row(Visit&& visit) const {
    visit_runs(dimensions.size() - 1, visit);
  }

 private:
  template <class Visit>
  void visit_runs(size_t depths, Visit&& visit, size_t depth = 0, int64_t destination = 0, int64_t source = 0) const {
    if (depth == depths) return visit(destination, source);
    const Dimension& d = dimensions[depth];
    for (int64_t i = 0; i < d.count; ++i)
      visit_runs(depths, visit, depth + 1, destination + i * d.destination_stride, source + i * d.source_stride);
  }
};

/// Returns how many runs at distances of `stride` lie whole within `bytes` that begin with the first one.
constexpr int64_t runs_within(int64_t bytes, int64_t run_bytes, int64_t stride) {
  return bytes < run_bytes ? 0 : 1 + (bytes - run_bytes) / stride;
}

}  // namespace spillway
