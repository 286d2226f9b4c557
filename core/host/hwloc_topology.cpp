#include "core/host/hwloc_topology.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace spillway {

HwlocTopology new_hwloc_topology(bool with_devices) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw std::runtime_error("[topology] hwloc_topology_init failed");
  HwlocTopology topology(raw, &hwloc_topology_destroy);
  const bool has_sys = ::access("/sys/devices/system/cpu", F_OK) == 0 || std::getenv("HWLOC_FSROOT") != nullptr;
  if (!has_sys) hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "linux");
  if (with_devices) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return topology;
}

}  // namespace spillway
