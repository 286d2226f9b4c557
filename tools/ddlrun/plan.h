/// The plan of a launch: the host that each rank runs on, and the levels of the ranks.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddl/comm/levels.h"
#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

struct Plan {
  HostList hosts;
  std::vector<Host> used;         ///< hosts that get ranks; `slots` is the number of their ranks
  std::vector<int> host_of_rank;  ///< index in `used`, by rank; ranks are contiguous by host
  ddl::Levels levels;             ///< declared levels, else ranks of a host, then hosts
  std::vector<std::string> notes;

  int64_t ranks() const { return std::ssize(host_of_rank); }
};

/// Makes a plan in which ranks fill one host's slots after the other's. Without a number of ranks, all slots are
/// filled. `levels` is a declaration as Levels::parse takes it, or empty. Throws BadRequest naming both numbers when
/// there are fewer slots than ranks, or when the levels make another number.
Plan make_plan(HostList hosts, std::optional<int64_t> ranks, const std::string& levels);

/// Returns the hosts, their slots and ranks as a table, and the hosts' origin.
std::string host_table(const Plan& plan);

/// Returns the ranks, level by level, and the hosts that they are on, as a tree.
std::string rank_tree(const Plan& plan);

/// Returns lines with columns as wide as their widest entry, two blanks between. Columns in `right` are aligned right.
std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right);

/// Returns ascending numbers with runs put together: `0-3`, `0-3 8`.
std::string ranges(const std::vector<int>& numbers);

}  // namespace spillway::ddlrun
