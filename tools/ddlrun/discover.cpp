#include "tools/ddlrun/discover.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "core/host/host_topology.h"
#include "tools/ddlrun/batch_systems.h"

namespace spillway::ddlrun {

int64_t count_gpus(const std::filesystem::path& root) {
  int64_t gpus = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(root / "dev", none)) {
    const std::string name = entry.path().filename().string(), prefix = "nvidia";
    const std::string number = name.substr(std::min(prefix.size(), name.size()));
    gpus += name.starts_with(prefix) && !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  }
  return gpus;
}

HostList this_host(const std::filesystem::path& root, int numa_nodes) {
  HostList list;
  const int64_t gpus = count_gpus(root);
  const int64_t slots = gpus > 0 ? gpus : std::max(1, numa_nodes);
  list.source = gpus > 0 ? "this host, a slot for each GPU" : "this host, which has no GPU: a slot for each NUMA node";
  list.add("localhost", slots);
  return list;
}

HostList find_hosts(const std::string& host_option, const std::string& hostfile, const Environment& environment) {
  if (!host_option.empty() && !hostfile.empty())
    throw BadRequest("-H and --hostfile are both given; allowed: one of them");
  if (!host_option.empty()) return parse_host_option(host_option);
  if (!hostfile.empty()) return parse_hostfile(read_file(hostfile), hostfile);
  for (const auto& of_batch_system : {hosts_of_slurm, hosts_of_lsf, hosts_of_grid_engine, hosts_of_pbs})
    if (auto list = of_batch_system(environment)) return *std::move(list);
  refuse_job_without_hosts(environment);
  return this_host("/", discover_host().numa_nodes);
}

}  // namespace spillway::ddlrun
