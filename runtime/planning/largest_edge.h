/// The largest volume that a budget can train.
#pragma once
#include <cstdint>
#include <functional>
#include <map>

namespace spillway::runtime {

/// The bytes that one training step on volumes of some edge needs.
struct EdgeNeed {
  int64_t peak_bytes = 0;   ///< peak without a budget
  int64_t floor_bytes = 0;  ///< the smallest feasible budget
};

/// A bisection over edges in steps of `step` voxels, up to `limit`, because needs grow with the edge. No edge is
/// measured more than once, however many budgets are asked for.
class LargestEdge {
 public:
  using Measure = std::function<EdgeNeed(int64_t edge)>;
  LargestEdge(int64_t step, int64_t limit, Measure measure);

  /// Returns the largest edge whose need, as field `bytes` tells it, is within `budget_bytes`; 0 when not even the
  /// smallest is.
  int64_t within(int64_t budget_bytes, int64_t EdgeNeed::*bytes);
  /// Returns the edges that were measured, and their needs.
  const std::map<int64_t, EdgeNeed>& measured() const noexcept { return measured_; }
  /// Returns the limit: no edge above it is tried.
  int64_t limit() const noexcept { return limit_; }

 private:
  const EdgeNeed& need(int64_t edge);

  const int64_t step_;
  const int64_t limit_;
  const Measure measure_;
  std::map<int64_t, EdgeNeed> measured_;
};

/// Returns the largest multiple of `step` whose peak is within `memory_bytes`; at least `step`. The peak is
/// `peak_bytes` at `edge` and grows with the volume.
int64_t edge_for_memory(int64_t memory_bytes, int64_t peak_bytes, int64_t edge, int64_t step);

}  // namespace spillway::runtime
