/// The largest volume that a budget can train.
#pragma once
#include <cstdint>
#include <functional>
#include <map>

namespace spillway {

/// What one training step on volumes of some edge needs.
struct EdgeNeed {
  int64_t peak_bytes = 0;   ///< without a budget
  int64_t floor_bytes = 0;  ///< the smallest feasible budget
};

/// Bisects over edges in steps of `step` voxels, up to `limit`; needs grow with the edge. Every edge is measured once,
/// whatever is asked.
class LargestEdge {
 public:
  using Measure = std::function<EdgeNeed(int64_t edge)>;
  LargestEdge(int64_t step, int64_t limit, Measure measure);

  /// The largest edge whose need, by `bytes`, is within `budget_bytes`; 0 when not even the smallest is.
  int64_t within(int64_t budget_bytes, int64_t EdgeNeed::*bytes);
  /// The edges that were measured.
  const std::map<int64_t, EdgeNeed>& measured() const noexcept { return measured_; }
  /// No edge above this is tried.
  int64_t limit() const noexcept { return limit_; }

 private:
  const EdgeNeed& need(int64_t edge);

  const int64_t step_;
  const int64_t limit_;
  const Measure measure_;
  std::map<int64_t, EdgeNeed> measured_;
};

/// The largest multiple of `step` at which a peak of `peak_bytes` at `edge`, growing with the volume, is within
/// `memory_bytes`; at least `step`.
int64_t edge_for_memory(int64_t memory_bytes, int64_t peak_bytes, int64_t edge, int64_t step);

}  // namespace spillway
