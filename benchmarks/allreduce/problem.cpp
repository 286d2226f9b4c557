#include "benchmarks/allreduce/problem.h"

#include "benchmarks/allreduce/parse_name.h"

namespace spillway::tools {
namespace {

constexpr auto kCollectives = value_names<Collective>({{Collective::allreduce, "allreduce"},
                                                       {Collective::reduce_scatter, "reduce_scatter"},
                                                       {Collective::all_gather, "all_gather"},
                                                       {Collective::broadcast, "broadcast"}});

}  // namespace

std::string_view name_of(Collective collective) {
  return kCollectives.name(collective);
}

Collective parse_collective(std::string_view name) {
  return parse_name(kCollectives, "--collective", name);
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
