#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"
#include "tools/ddlrun/plan.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

constexpr int64_t kRanks = 64;

void check(const ddlrun::HostList& list) {
  require(!list.hosts.empty(), "a list names a host");
  for (const auto& host : list.hosts) require(ddlrun::is_host_name(host.name) && host.slots >= 1, "hosts have slots");
  const auto ranks = std::min(kRanks, list.slots());
  const ddlrun::Plan plan = ddlrun::make_plan(list, ranks, "");
  require(plan.ranks() == ranks && !host_table(plan).empty() && !rank_tree(plan).empty(), "all ranks are placed");
}

}  // namespace

void host_lists(std::string_view input) {
  const unsigned kind = take_byte(input);
  taken([&] {
    check(kind % 2 ? ddlrun::parse_host_option(std::string(input))
                   : ddlrun::parse_hostfile(std::string(input), "some.hosts"));
  });
}

}  // namespace spillway::fuzz
