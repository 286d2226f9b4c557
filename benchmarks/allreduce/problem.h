/// A problem for a benchmark of collectives: the collective and its vector.
#pragma once
#include <cstdint>
#include <string_view>

#include "ddl/comm/element.h"

namespace spillway::tools {

enum class Collective : uint8_t { allreduce, reduce_scatter, all_gather, broadcast };

std::string_view name_of(Collective collective);
/// Returns the collective of a name: `allreduce`, `reduce_scatter`, `all_gather` or `broadcast`. Throws BadRequest
/// naming `name` and the allowed names.
Collective parse_collective(std::string_view name);

/// Returns the bandwidth of the busiest link over that of the algorithm, as nccl-tests counts it. It is 2(n − 1)/n for
/// an allreduce, (n − 1)/n for its halves, 1 for a broadcast.
double bus_factor(Collective collective, int ranks);

/// The rank that broadcasts.
inline constexpr int kRoot = 0;

/// A vector and the collective that is applied to it, on every rank alike. Parts of ranks are ddl::part_of() the
/// vector.
struct Problem {
  ddl::Element element = ddl::Element::float32;
  ddl::Reduction reduction = ddl::Reduction::sum;  ///< used where the collective reduces
  int64_t count = 0;                               ///< elements of the whole vector
  Collective collective = Collective::allreduce;
  int64_t offset_bytes = 0;  ///< distance of the vectors from memory that is aligned for anything

  int64_t bytes() const { return count * ddl::element_bytes(element); }
  bool reduces() const { return collective == Collective::allreduce || collective == Collective::reduce_scatter; }
  /// Returns the elements that `rank` contributes: its part of an all-gather, none of a broadcast that it only
  /// receives.
  ddl::Range input(int rank, int ranks) const;
  /// Returns the elements that `rank` must have in the end: its part of a reduce-scatter, else the whole vector.
  ddl::Range result(int rank, int ranks) const;
};

}  // namespace spillway::tools
