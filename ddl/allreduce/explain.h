/// The work of an allreduce on each level, how long that should take, and how long it took.
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
  int64_t groups = 0;    ///< groups that the level makes
  int64_t joined = 0;    ///< groups of the level below (at level 1: ranks) in its largest group
  bool alike = true;     ///< true when all groups join so many
  LevelTraffic traffic;  ///< maximum bytes
  /// The minimum bytes that leave each of the joined groups, by any algorithm: 2(n−1)/n of the vector.
  int64_t least_bytes = 0;

  // With costs: seconds.
  std::optional<double> bound_seconds;      ///< time in which its links could carry no more than least_bytes
  std::optional<double> predicted_seconds;  ///< time that its links are busy
  /// The average seconds of a call, with totals, that this rank waited for its messages and did nothing else. When
  /// chunks follow each other this is less than the messages take, except on the busiest level.
  std::optional<double> waited_seconds;
};

/// The account of one allreduce, level by level.
struct Explanation {
  int ranks = 0;
  std::string shape;
  int64_t bytes = 0;
  int64_t chunk_bytes = 0;
  std::vector<LevelExplanation> levels;  ///< from level 1
  std::optional<double> bound_seconds, predicted_seconds, predicted_adding_seconds;
  std::optional<double> seconds, adding_seconds;  ///< average of a call, on this rank
};

/// Explains an allreduce of a vector of `count` elements. `totals` are those of an Allreduce of this choice, all of
/// whose calls had such vectors. Totals without calls say nothing. Cost: ranks times levels.
Explanation explain(const Choice& choice, int64_t count, Element element,
                    const std::optional<Costs>& costs = std::nullopt, const AllreduceTotals& totals = {});

/// Returns the explanation in a few lines for people.
std::string describe(const Explanation& explanation);

}  // namespace spillway::ddl
