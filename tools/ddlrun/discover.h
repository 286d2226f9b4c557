/// The search for hosts and their slots.
#pragma once
#include <filesystem>
#include <string>

#include "tools/ddlrun/hosts.h"

namespace spillway::ddlrun {

/// Returns this host as `localhost`, with a slot for each GPU (dev/nvidia0, … below `root`). Without GPUs it has a slot
/// for each of `numa_nodes`.
HostList this_host(const std::filesystem::path& root, int numa_nodes);

/// Returns the hosts from the first source that names any: -H, a hostfile, Slurm, LSF, Grid Engine, PBS, this host.
/// Throws BadRequest as the functions that read these sources do, and when both a list and a file are given.
HostList find_hosts(const std::string& host_option, const std::string& hostfile, const Environment& environment);

/// Returns how many files dev/nvidia0, dev/nvidia1, … there are below `root`.
int64_t count_gpus(const std::filesystem::path& root);

}  // namespace spillway::ddlrun
