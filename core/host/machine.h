/// One machine as people see it: packages, NUMA nodes, and the devices that are near them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace spillway {

/// A graphics card or accelerator. Consoles of servers are not among them.
struct Gpu {
  std::string bus_id;  ///< on PCI, `0000:3b:00.0`
  std::string name;    ///< as well as hwloc knows it: `NVIDIA H100 PCIe`, else `10de:2331`
  int package = -1;    ///< that it is near; -1: all alike, or unknown
  int numa = -1;       ///< likewise
  /// The switch that it shares with other devices, by its bus address; empty: none.
  std::string pcie_switch;
  double pci_bytes_per_second = 0;  ///< each way; 0: unknown
  /// GPUs with one number reach each other over NVLink, directly or through others and switches; -1: no such link.
  int nvlink_group = -1;
  double nvlink_bytes_per_second = 0;  ///< each way, all its links to GPUs and switches together

  bool operator==(const Gpu&) const = default;
};

/// A network adapter: its PCI function, and what the system calls it.
struct Nic {
  std::string bus_id;                   ///< empty when it is not on PCI
  std::string name;                     ///< as of a Gpu; empty when it is not on PCI
  std::vector<std::string> interfaces;  ///< `eth0`, `mlx5_0`
  int package = -1;
  int numa = -1;
  std::string pcie_switch;
  double pci_bytes_per_second = 0;
  double bits_per_second = 0;  ///< of the link now, as the system says; 0: unknown, down, or read from a file

  bool operator==(const Nic&) const = default;
};

struct Package {
  int number = 0;
  std::string model;

  bool operator==(const Package&) const = default;
};

struct NumaNode {
  int number = 0;
  int package = -1;  ///< -1: in several
  int64_t memory_bytes = 0;
  int cores = 0;               ///< near it; 0 for memory without cores, or beside another node with the same ones
  std::vector<int> cpus = {};  ///< logical ones next to it, also where another node has the same ones

  bool operator==(const NumaNode&) const = default;
};

/// Numbers of packages, NUMA nodes and CPUs are the system's.
struct Machine {
  std::string hostname;
  int cores = 0;
  int64_t memory_bytes = 0;
  std::vector<Package> packages;
  std::vector<NumaNode> numa_nodes;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;

  bool operator==(const Machine&) const = default;
};

/// The machine that this process runs on, within the limits of its container.
/// Throws std::runtime_error when hwloc cannot read it.
Machine discover_machine();

/// The machine that hwloc's tools described in a text; its hostname may be empty. Throws BadRequest when there is none.
Machine machine_from_xml(const std::string& xml);

/// The machine that hwloc's tools described in `file` (`lstopo x.xml`). Its hostname is the file's own word for it,
/// else the file's name. Throws BadRequest naming the file and why it cannot be read.
Machine read_machine(const std::filesystem::path& file);

/// The machine of one of hwloc's synthetic descriptions, `package:2 numa:2 core:4 pu:1`: no devices.
/// Throws BadRequest naming the description.
Machine synthetic_machine(const std::string& description);

}  // namespace spillway
