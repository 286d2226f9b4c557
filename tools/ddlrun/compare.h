/// Whether hosts are fit to work together, by what they are.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/ddlrun/record.h"

namespace spillway::ddlrun {

/// A host as the plan calls it.
struct Inspected {
  std::string name;
  int64_t ranks = 1;
  HostRecord record;
};

struct Verdict {
  std::vector<std::string> errors = {};    ///< no launch: the program, a library or MPI is missing or not the same
  std::vector<std::string> warnings = {};  ///< unequal cores, memory, cards, networks, kernels; fewer cards than ranks
};

/// `program` is what was asked for. Files with the same differences are told together.
Verdict compare(const std::vector<Inspected>& hosts, const std::string& program);

/// A row per host: cores, memory, cards, networks.
std::string inspection_table(const std::vector<Inspected>& hosts);

/// `4 x NVIDIA A100`, `NVIDIA A100, 2 x Tesla T4`; `-` for none.
std::string describe_gpus(const HostRecord& record);
/// `2 x 25 Gbit/s, InfiniBand 200 Gbit/s`, fastest last; names do not matter.
std::string describe_networks(const HostRecord& record);

}  // namespace spillway::ddlrun
