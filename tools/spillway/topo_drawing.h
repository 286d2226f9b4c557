/// Machines, ranks and links as text.
#pragma once
#include <string>
#include <vector>

#include "ddl/allreduce/cost_model.h"
#include "ddl/topology/rank_map.h"

namespace spillway::tools {

/// Each machine as a tree below its name; machines with the same tree share one.
std::string draw_machines(const std::vector<Machine>& machines);
/// The levels as a tree, with the ranks of each group.
std::string draw_ranks(const RankMap& map);
/// A line for each level.
std::string draw_links(const RankMap& map, const ddl::Costs& costs);
/// A table in microseconds.
std::string draw_latencies(const RankMap& map, const std::vector<std::vector<double>>& seconds);

}  // namespace spillway::tools
