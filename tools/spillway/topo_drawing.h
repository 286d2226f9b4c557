/// Machines, ranks and links as text.
#pragma once
#include <string>
#include <vector>

#include "ddl/allreduce/cost_model.h"
#include "ddl/topology/rank_map.h"

namespace spillway::tools {

/// Draws each machine as a tree below its name; machines with the same tree share one.
std::string draw_machines(const std::vector<Machine>& machines);
/// Draws the levels as a tree, with the ranks of each group.
std::string draw_ranks(const RankMap& map);
/// Draws a line for each level.
std::string draw_links(const RankMap& map, const ddl::Costs& costs);
/// Draws a table of the latencies in microseconds.
std::string draw_latencies(const RankMap& map, const std::vector<std::vector<double>>& seconds);

}  // namespace spillway::tools
