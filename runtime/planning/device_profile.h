/// The rates of a device and its links, for plans of machines that are not here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/levels.h"
#include "runtime/planning/device_rates.h"
#include "swap/schedule/link_rates.h"

namespace spillway::runtime {

/// The numbers of one device, and of the links between devices.
struct DeviceProfile {
  std::string name = {};
  std::string origin = {};      ///< where the numbers come from, for people
  int64_t memory_bytes = 0;     ///< capacity of the device
  int64_t library_bytes = 0;    ///< device memory that libraries take, which counts under a budget and cannot leave
  DeviceRates kernels = {};     ///< rates that kernels reach
  swap::LinkRates copies = {};  ///< rates between the device and its host, and between the host and a disk
  /// Rate of the host's memory, which the copies of all its devices share; 0: it limits none.
  double host_bytes_per_second = 0;
  ddl::Costs network = {};           ///< by level, the nearest first; further levels are like the last one
  bool is_this_machine = false;      ///< kernels are measured here, and `kernels` is not used
  bool network_is_measured = false;  ///< by the ranks of the run together, as they share their cores
};

/// Returns the profile called `name`: h200, h100, a100 or v100. Kernels reach 60 % of the data sheet's peak in products
/// and 80 % of its memory bandwidth. What an H100 has shown counts for all of them: the host's time of an operator,
/// what libraries take, with tensor cores the rate of convolutions of few channels, and the times of decompositions,
/// longer by an assumed factor where the GPU is older (docs/measurements/2026-11-28-gpu-plans.md). Throws BadRequest
/// naming the profiles that there are.
DeviceProfile built_in_profile(std::string_view name);
/// Returns the names that built_in_profile() takes.
std::vector<std::string> built_in_profiles();

/// Reads a profile: a JSON object with the fields that docs/cli/plan.md lists. Throws BadRequest naming a field that is
/// missing, unknown or outside its range.
DeviceProfile parse_profile(std::string_view text);

/// Ranks and their levels, and the links that join each level: the first ones join the ranks of a host, the second ones
/// hosts, and so on.
struct ClusterShape {
  ddl::Levels levels = ddl::Levels(1);
  std::vector<size_t> links = {};  ///< by level: its place among the profile's links
  int ranks_of_host = 1;           ///< most ranks of a host
  int devices_per_link = 1;        ///< devices that share one link to their host, as behind a PCIe switch

  /// Parses a shape as Levels::parse() does. `1x4` is 4 hosts of one rank, which hosts' links join. Empty: all ranks
  /// are on one host. Throws BadRequest as it does.
  static ClusterShape parse(std::string_view text, int world);
};

/// Returns the rates of one device's copies while all devices of its host copy: its share of their link and of the
/// host's memory.
swap::LinkRates shared_copies(const DeviceProfile& profile, const ClusterShape& shape);

/// Returns the profile of ranks of a host that take turns on its cores, so that whatever these do for one rank takes
/// `turns` times as long, ≥ 1: its copies, and the messages of links that cores serve, unless these were measured.
/// Kernels stay as they are.
DeviceProfile in_turns(DeviceProfile profile, double turns);

/// Returns the costs of a cluster's levels: those of the profile's links, of which further ones are like the last one.
ddl::Costs costs_of(const DeviceProfile& profile, const ClusterShape& shape);

}  // namespace spillway::runtime
