/// The hardware near a rank inside its host: near its GPU where it uses one, else near its CPUs.
#pragma once
#include <string>
#include <vector>

#include "core/host/machine.h"

namespace spillway {

/// The hardware that is near one rank. Ranks of a host that have a field in common are near each other. Ranks that
/// share an earlier field are closer than ranks that share only a later one.
struct Nearness {
  /// `NVLink 0` for all GPUs that NVLink joins (with the number Gpu::nvlink_group); for any other GPU, its own bus
  /// address. Empty: the rank uses no GPU.
  std::string link;
  /// The bus address of the PCIe switch above the GPU; empty: none, or unknown.
  std::string pcie_switch;
  /// The system's numbers of the near NUMA nodes; none: all are equally near, or unknown.
  std::vector<int> numa_nodes;

  bool operator==(const Nearness&) const = default;
};

/// Returns the nearness of a rank that runs on `cpus` and uses the GPU at the PCI address `gpu_bus_id`. The address is
/// written as by hwloc or CUDA (`0000:3b:00.0`, `0000:3B:00.0`). When it is empty, the rank computes on its CPUs. With
/// a GPU, `cpus` do not count. For a GPU that the machine does not have, `link` is the address, so that only ranks of
/// that GPU are near each other, and nothing else is known to be near. A CPU that the machine does not have counts for
/// nothing. require_in() refuses both.
Nearness nearness_of(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id);

/// Throws BadRequest when the GPU is not in this machine, or, without a GPU, when one of `cpus` is not. The message
/// names it and the GPUs or CPUs that are there.
void require_in(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id);

}  // namespace spillway
