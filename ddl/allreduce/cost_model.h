/// How long an allreduce takes: a prediction for every plan, the physical bound, and the plan that is best.
#pragma once
#include <cstdint>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/plan.h"

namespace spillway::ddl {

/// One level's links, while everybody uses them.
struct LinkCost {
  double latency_seconds = 0;    ///< α: until a message has come, however short
  double message_seconds = 0;    ///< what each further one sent at the same time adds
  double bytes_per_second = 0;   ///< B: out of, and at the same time into, one of the groups that the level joins
  int64_t piece_bytes = kWhole;  ///< messages of at most so many bytes are what B was reached with
  bool by_cores = false;         ///< the ranks' cores move the bytes, as within a host: they cannot add meanwhile
  bool operator==(const LinkCost&) const = default;
};

struct Costs {
  std::vector<LinkCost> levels = {};   ///< from level 1
  double reduce_seconds_per_byte = 0;  ///< γ: of what is added to something

  /// Throws BadRequest unless all are finite, bandwidths positive, the others not negative, and one for each level.
  void validate(const Levels& levels) const;
};

/// By level, the pieces in which messages travel fastest.
std::vector<int64_t> piece_bytes(const Costs& costs);

/// How a vector is reduced.
struct Choice {
  Plan plan;
  AllreduceOptions options = {};
};

/// What an allreduce is expected to take.
struct Prediction {
  double seconds = 0;
  std::vector<double> level_seconds;  ///< from level 1: that its links are busy with all chunks
  double adding_seconds = 0;          ///< that the busiest rank adds
};

/// For a vector of `count` elements in chunks, each round of a chunk taking
///   α + (messages − 1)·o + bytes of the busiest link / B + γ·bytes that the busiest rank adds,
/// and chunks following each other as fast as the busiest resource (a level's links, or the ranks' cores, which add and
/// move bytes of some levels) lets them:
///   T(m) = Σ_r t_r(S/m) + (m − 1)·max_resource Σ_r t_r(S/m).
/// What the ranks' agreement takes longer than the first round, which goes beside it, comes on top.
Prediction predict(const Choice& choice, int64_t count, Element element, const Costs& costs);
inline double predict_seconds(const Choice& choice, int64_t count, Element element, const Costs& costs) {
  return predict(choice, count, element, costs).seconds;
}

/// What no allreduce without reduction in the network can beat:
///   max( ⌈log2 P⌉ α,  max_i 2((n_i − 1)/n_i) S/B_i,  γ S (1 − 1/P) ),
/// n_i the groups that a level joins, B_i the link of one, α the lowest level's.
double bound_seconds(const Levels& levels, int64_t bytes, const Costs& costs);
/// The part of one level's links in it: 2((n_i − 1)/n_i) S/B_i.
double link_bound_seconds(const Levels& levels, int level, int64_t bytes, const Costs& costs);

/// The choice with the shortest predicted time for a vector of `bytes` bytes of float32, among all algorithms on all
/// levels and chunks of 256 KiB, 1 and 4 MiB, of 1 MiB where cores move all bytes; `keep_order`: among plans that keep
/// the order of sums. Deterministic.
Choice choose(const Levels& levels, int64_t bytes, const Costs& costs, bool keep_order);

}  // namespace spillway::ddl
