/// Where hosts and slots come from.
#pragma once
#include <filesystem>
#include <string>

#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

/// This host as `localhost`, with a slot for each card (dev/nvidia0, … below `root`), else for each of `numa_nodes`.
HostList this_host(const std::filesystem::path& root, int numa_nodes);

/// The first that says something of: -H, a hostfile, Slurm, LSF, Grid Engine, this host. Throws BadRequest as those do,
/// and when both a list and a file are given.
HostList find_hosts(const std::string& host_option, const std::string& hostfile, const Environment& environment);

/// How many files dev/nvidia0, dev/nvidia1, … there are below `root`.
int64_t count_cards(const std::filesystem::path& root);

}  // namespace spillway::ddlrun
