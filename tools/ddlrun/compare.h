/// The comparison of hosts by their records, which tells whether they are fit to work together.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/ddlrun/record.h"

namespace spillway::ddlrun {

/// A host under the name that the plan gives it, with its ranks and its record.
struct Inspected {
  std::string name;
  int64_t ranks = 1;
  HostRecord record;
};

struct Verdict {
  std::vector<std::string> errors = {};    ///< forbid a launch: program, library or MPI missing or unequal
  std::vector<std::string> warnings = {};  ///< unequal cores, memory, GPUs, networks, kernels; fewer GPUs than ranks
};

/// Compares the hosts' records. `program` is PROGRAM as the user named it. Files that differ between the same hosts
/// share one error.
Verdict compare(const std::vector<Inspected>& hosts, const std::string& program);

/// Returns a table with a row per host: cores, memory, GPUs, networks.
std::string inspection_table(const std::vector<Inspected>& hosts);

/// Returns `4 x NVIDIA A100`, or `NVIDIA A100, 2 x Tesla T4`; `-` when there is none.
std::string describe_gpus(const HostRecord& record);
/// Returns `2 x 25 Gbit/s, InfiniBand 200 Gbit/s`, the fastest last. The networks' names do not matter.
std::string describe_networks(const HostRecord& record);

}  // namespace spillway::ddlrun
