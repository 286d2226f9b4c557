/// What is near a rank inside its host: around its card where it uses one, else around its CPUs.
#pragma once
#include <string>
#include <vector>

#include "core/host/machine.h"

namespace spillway {

/// Ranks of a host that have something in common here are near each other: the closer, the further up it stands.
struct Nearness {
  /// `NVLink 0` on all cards that NVLink joins (Gpu::nvlink_group), the card's own bus address on any other. Empty: the
  /// rank uses no card.
  std::string link;
  /// The PCIe switch above the card, by its bus address; empty: none, or unknown.
  std::string pcie_switch;
  /// The system's numbers of NUMA nodes; none: all alike, or unknown.
  std::vector<int> numa_nodes;

  bool operator==(const Nearness&) const = default;
};

/// Of a rank that runs on `cpus` and uses the GPU at the PCI address `gpu_bus_id`, as hwloc or CUDA writes it
/// (`0000:3b:00.0`, `0000:3B:00.0`); empty: it computes on its CPUs. With a GPU these do not count. What the machine
/// does not have is near nothing certain.
Nearness nearness_of(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id);

/// Throws BadRequest naming the GPU, without one the CPU, that is not in this machine, and what is there.
void require_in(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id);

}  // namespace spillway
