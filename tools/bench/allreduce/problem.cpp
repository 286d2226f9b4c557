#include "tools/bench/allreduce/problem.h"

#include "core/error.h"

namespace spillway::tools {

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    default:
      return "allreduce";
  }
}

Collective parse_collective(std::string_view name) {
  for (const auto collective :
       {Collective::allreduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast})
    if (name_of(collective) == name) return collective;
  throw BadRequest(str("--collective: ", name, "; allowed: allreduce, reduce_scatter, all_gather, broadcast"));
}

double bus_factor(Collective collective, int ranks) {
  const double share = (ranks - 1.0) / ranks;
  switch (collective) {
    case Collective::allreduce:
      return 2 * share;
    case Collective::broadcast:
      return 1;
    default:
      return share;
  }
}

ddl::Range Problem::input(int rank, int ranks) const {
  if (collective == Collective::all_gather) return ddl::part_of({0, count}, rank, ranks);
  if (collective == Collective::broadcast && rank != kRoot) return {};
  return {0, count};
}

ddl::Range Problem::result(int rank, int ranks) const {
  if (collective == Collective::reduce_scatter) return ddl::part_of({0, count}, rank, ranks);
  return {0, count};
}

}  // namespace spillway::tools
