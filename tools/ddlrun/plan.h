/// Which rank runs on which host, and on what levels they meet.
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
  std::vector<Host> used;         ///< hosts that get ranks, `slots` of them so many
  std::vector<int> host_of_rank;  ///< in `used`; ranks are contiguous by host
  ddl::Levels levels;             ///< as declared, else ranks of a host, hosts
  std::vector<std::string> notes;

  int64_t ranks() const { return static_cast<int64_t>(host_of_rank.size()); }
};

/// Ranks fill one host's slots after the other's; none given: all slots. `levels` is a declaration as Levels::parse
/// takes it, or empty. Throws BadRequest naming both numbers when there are fewer slots than ranks, or the levels make
/// another number.
Plan make_plan(HostList hosts, std::optional<int64_t> ranks, const std::string& levels);

/// The hosts, their slots and ranks, as a table, and where they come from.
std::string host_table(const Plan& plan);

/// The ranks, level by level, and the hosts they are on, as a tree.
std::string rank_tree(const Plan& plan);

/// Lines of columns as wide as their widest entry, two blanks between; columns in `right` are aligned there.
std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& right);

/// `0-3`, `0-3 8`: ascending numbers with runs put together.
std::string ranges(const std::vector<int>& numbers);

}  // namespace spillway::ddlrun
