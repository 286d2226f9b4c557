/// One machine's hardware: packages, NUMA nodes, and the devices that are near them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace spillway {

/// A graphics GPU or accelerator. The display adapters of server consoles are not included.
struct Gpu {
  std::string bus_id;  ///< address on PCI, `0000:3b:00.0`
  std::string name;    ///< name, as precise as hwloc knows it: `NVIDIA H100 PCIe`, else `10de:2331`
  int package = -1;    ///< package near it; -1: all are equally near, or unknown
  int numa = -1;       ///< NUMA node near it; -1: all are equally near, or unknown
  /// The bus address of the PCIe switch that it shares with other devices; empty: none.
  std::string pcie_switch;
  double pci_bytes_per_second = 0;  ///< rate each way; 0: unknown
  /// The number of its NVLink group; -1: no such link. GPUs with the same number reach each other over NVLink, directly
  /// or through other GPUs and switches.
  int nvlink_group = -1;
  double nvlink_bytes_per_second = 0;  ///< rate each way of all its links to GPUs and switches together

  bool operator==(const Gpu&) const = default;
};

/// A network adapter: its PCI function, and the system's names for it.
struct Nic {
  std::string bus_id;                   ///< address on PCI; empty when it is not on PCI
  std::string name;                     ///< name as in Gpu::name; empty when it is not on PCI
  std::vector<std::string> interfaces;  ///< the system's names, `eth0`, `mlx5_0`
  int package = -1;
  int numa = -1;
  std::string pcie_switch;
  double pci_bytes_per_second = 0;
  double bits_per_second = 0;  ///< the link's rate now, as the system says; 0: unknown, down, or read from a file

  bool operator==(const Nic&) const = default;
};

struct Package {
  int number = 0;
  std::string model;

  bool operator==(const Package&) const = default;
};

struct NumaNode {
  int number = 0;
  int package = -1;  ///< its package; -1: it is in several
  int64_t memory_bytes = 0;
  int cores = 0;               ///< cores near it; 0 for memory without cores, or beside a node with the same cores
  std::vector<int> cpus = {};  ///< logical CPUs next to it, also where another node has the same CPUs

  bool operator==(const NumaNode&) const = default;
};

/// One machine. The numbers of packages, NUMA nodes and CPUs are the system's.
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

/// Returns the machine that this process runs on, within the limits of its container. Throws std::runtime_error when
/// hwloc cannot read it.
Machine discover_machine();

/// Returns the machine that hwloc's tools described in the text `xml`; its hostname may be empty. Throws BadRequest
/// when the text describes no machine.
Machine machine_from_xml(const std::string& xml);

/// Returns the machine that hwloc's tools described in `file` (`lstopo x.xml`). Its hostname is the one that the file
/// gives, else the file's name. Throws BadRequest naming the file and the reason why it cannot be read.
Machine read_machine(const std::filesystem::path& file);

/// Returns the machine of one of hwloc's synthetic descriptions, `package:2 numa:2 core:4 pu:1`. It has no devices.
/// Throws BadRequest naming the description.
Machine synthetic_machine(const std::string& description);

}  // namespace spillway
