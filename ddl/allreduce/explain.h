/// What an allreduce does on each level, how long that should take, and how long it took.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/cost_model.h"

namespace spillway::ddl {

/// One level's part in an allreduce of one vector.
struct LevelExplanation {
  Algorithm algorithm = Algorithm::direct;
  int64_t groups = 0;    ///< that the level makes
  int64_t joined = 0;    ///< of the level below (at level 1: ranks) in the largest of them
  bool alike = true;     ///< all join so many
  LevelTraffic traffic;  ///< bytes, at most
  /// That leave each of those joined at least, whatever the algorithm: 2(n−1)/n of the vector.
  int64_t least_bytes = 0;

  // With costs: seconds.
  std::optional<double> bound_seconds;      ///< in which its links could carry no more than least_bytes
  std::optional<double> predicted_seconds;  ///< that its links are busy
  /// With totals: seconds a call that this rank waited for its messages and did nothing else, on average. Where chunks
  /// follow each other that is less than they take, but for the busiest level.
  std::optional<double> waited_seconds;
};

struct Explanation {
  int ranks = 0;
  std::string shape;
  int64_t bytes = 0;
  int64_t chunk_bytes = 0;
  std::vector<LevelExplanation> levels;  ///< from level 1
  std::optional<double> bound_seconds, predicted_seconds, predicted_adding_seconds;
  std::optional<double> seconds, adding_seconds;  ///< a call, on this rank
};

/// Of a vector of `count` elements. `totals` are of an Allreduce of this choice, all of whose calls had such vectors;
/// of one that made no call they say nothing. Cost: ranks times levels.
Explanation explain(const Choice& choice, int64_t count, Element element,
                    const std::optional<Costs>& costs = std::nullopt, const AllreduceTotals& totals = {});

/// In a few lines for people.
std::string describe(const Explanation& explanation);

}  // namespace spillway::ddl
