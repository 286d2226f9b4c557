#include "tools/ddlrun/batch_systems.h"

#include <algorithm>

#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

/// Returns the environment that lines NAME=VALUE describe. The value of a variable that names a file is the content of
/// that file, with `|` between its lines.
ddlrun::Environment environment_of(std::string_view input) {
  ddlrun::Environment environment;
  for (const std::string& line : ddlrun::split(input, '\n')) {
    const size_t equals = std::min(line.find('='), line.size());
    const std::string name = line.substr(0, equals);
    std::string value = line.substr(std::min(equals + 1, line.size()));
    if (name.ends_with("HOSTFILE")) {
      std::replace(value.begin(), value.end(), '|', '\n');
      value = scratch_file("hostfile", value).string();
    }
    environment[name] = value;
  }
  return environment;
}

}  // namespace

void batch_systems(std::string_view input) {
  const auto environment = environment_of(input);
  (void)ddlrun::batch_system(environment);
  for (const auto& hosts_of :
       {ddlrun::hosts_of_slurm, ddlrun::hosts_of_lsf, ddlrun::hosts_of_grid_engine, ddlrun::hosts_of_pbs})
    taken([&] {
      const auto list = hosts_of(environment);
      if (!list) return;
      require(!list->hosts.empty(), "a list names a host");
      for (const auto& host : list->hosts)
        require(ddlrun::is_host_name(host.name) && host.slots >= 1, "hosts have slots");
    });
}

}  // namespace spillway::fuzz
