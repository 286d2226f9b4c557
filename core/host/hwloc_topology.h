/// hwloc's topologies, as this folder makes them.
#pragma once
#include <hwloc.h>

#include <memory>

namespace spillway {

/// A topology that destroys itself.
using HwlocTopology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

/// Returns a topology to be loaded. Where there is no /sys, as in some containers, hwloc's reader of it is left out: it
/// would find nothing and complain on stderr; CPUs and memory are found without it. `with_devices` keeps GPUs and
/// network adapters. Throws std::runtime_error.
HwlocTopology new_hwloc_topology(bool with_devices);

}  // namespace spillway
