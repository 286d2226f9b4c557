/// The time of an allreduce: a prediction for every plan, the physical bound, and the plan that is best.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ddl/allreduce/plan.h"

namespace spillway::ddl {

/// The costs of one level's links while all ranks use them.
struct LinkCost {
  double latency_seconds = 0;      ///< α: time until a message has come, however short
  double message_seconds = 0;      ///< o: time that each further message sent at the same time adds
  double bytes_per_second = 0;     ///< B: bandwidth out of, and at the same time into, one group that the level joins
  int64_t segment_bytes = kWhole;  ///< B was reached with messages of at most so many bytes
  bool by_cores = false;           ///< the ranks' cores move the bytes, as within a host: they cannot add meanwhile
  bool operator==(const LinkCost&) const = default;
};

/// The costs of all links, and of adding.
struct Costs {
  std::vector<LinkCost> levels = {};   ///< from level 1
  double reduce_seconds_per_byte = 0;  ///< γ: time for each byte that is added to another

  /// Throws BadRequest unless all numbers are finite, bandwidths positive, the others not negative, and there is one
  /// LinkCost for each level.
  void validate(const Levels& levels) const;
};

/// Returns by level the size in bytes of the pieces in which messages travel fastest.
std::vector<int64_t> segment_bytes(const Costs& costs);

/// The time that an allreduce is expected to take.
struct Prediction {
  double seconds = 0;
  std::vector<double> level_seconds;  ///< from level 1: time that its links are busy with all chunks
  double adding_seconds = 0;          ///< time that the busiest rank adds
};

/// Predicts the time for a vector of `count` elements in chunks. Each round of a chunk takes
///   α + (messages − 1)·o + bytes of the busiest link / B + γ·bytes that the busiest rank adds,
/// and chunks follow each other as fast as the busiest resource lets them. A resource is a level's links, or the ranks'
/// cores, which add and move the bytes of some levels:
///   T(m) = Σ_r t_r(S/m) + (m − 1)·max_resource Σ_r t_r(S/m).
/// The ranks' agreement goes beside the first round. The time that it takes longer than that round comes on top.
Prediction predict(const Choice& choice, int64_t count, Element element, const Costs& costs);
/// Returns predict()'s seconds alone.
inline double predict_seconds(const Choice& choice, int64_t count, Element element, const Costs& costs) {
  return predict(choice, count, element, costs).seconds;
}

/// Returns a quick estimate of the time of an allreduce, for worlds so large that predict() takes too long:
///   Σ_i [ 2 ⌈log2 n_i⌉ α_i + 2((n_i − 1)/n_i) S/B_i ] + γ S.
/// The names are those of bound_seconds(). Levels work one after another, each at its links' full bandwidth.
double estimate_seconds(const Levels& levels, int64_t bytes, const Costs& costs);

/// Returns the predicted time of broadcast() (ddl/comm/collectives.h) of so many bytes to `members`: the hops of its
/// tree, level by level. On a level that joins n groups with members these are ⌈log2 n⌉, of α + bytes/B each.
double predict_broadcast_seconds(const Levels& levels, int64_t bytes, std::span<const int> members, const Costs& costs);

/// Returns the time that no allreduce without reduction in the network can beat:
///   max( ⌈log2 P⌉ α,  max_i 2((n_i − 1)/n_i) S/B_i,  γ S (1 − 1/P) ).
/// Here n_i is the number of groups that a level joins, B_i the link of one group, α the lowest level's.
double bound_seconds(const Levels& levels, int64_t bytes, const Costs& costs);
/// Returns the part of one level's links in bound_seconds(): 2((n_i − 1)/n_i) S/B_i.
double link_bound_seconds(const Levels& levels, int level, int64_t bytes, const Costs& costs);

/// Returns the plans that choose() weighs for a vector of `bytes` bytes: all combinations of algorithms, direct on
/// every level first. leader and oneshot save a latency, but a member receives the whole vector from all others at
/// once. So they are only for vectors of which that is 256 KiB at most; oneshot is also for two members, with any
/// vector. `keep_order` admits only plans that keep the order of sums.
std::vector<Plan> candidate_plans(const Levels& levels, int64_t bytes, bool keep_order);
/// Returns the chunk sizes that choose() weighs, ascending: 256 KiB, 1 and 4 MiB, or 1 MiB alone where cores move all
/// bytes.
std::span<const int64_t> candidate_chunks(const Costs& costs);
/// Returns the choice with the shortest predicted time for a vector of `bytes` bytes of float32, among the candidates
/// above. Deterministic.
Choice choose(const Levels& levels, int64_t bytes, const Costs& costs, bool keep_order);

}  // namespace spillway::ddl
