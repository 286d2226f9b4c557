#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "core/error.h"
#include "core/host/hwloc_topology.h"
#include "core/host/in_child.h"
#include "core/host/machine.h"
#include "core/host/machine_json.h"
#include "core/host/machine_xml.h"
#include "core/host/text_file.h"
#include "core/json_text.h"

namespace spillway {
namespace {

constexpr double kGiga = 1e9, kMega = 1e6;
constexpr std::chrono::seconds kMaxImport{10};
constexpr int64_t kMaxXml = int64_t{16} << 20;  // lstopo writes about 1 KB per core

std::string info_of(hwloc_obj_t object, const char* key) {
  const char* value = hwloc_obj_get_info_by_name(object, key);
  return value ? value : "";
}

bool is_pci(hwloc_obj_t object) {
  return object && object->type == HWLOC_OBJ_PCI_DEVICE;
}

bool is_gpu(hwloc_obj_t device) {
  const auto& pci = device->attr->pcidev;
  const bool makes_gpus = pci.vendor_id == 0x10de || pci.vendor_id == 0x1002 || pci.vendor_id == 0x8086;
  return pci.class_id == 0x0302 || pci.class_id == 0x0380 || pci.class_id >> 8 == 0x12 || pci.class_id == 0x0b40 ||
         (pci.class_id == 0x0300 && makes_gpus);
}

bool is_nic(hwloc_obj_t device) {
  return device->attr->pcidev.class_id >> 8 == 0x02;
}

/// Returns the number in one of hwloc's enums, which may be any number that a file had there. The number is copied,
/// because loading an enum whose value is no enumerator is undefined.
template <class Enum>
int number_in(const Enum& place) {
  int number = 0;
  static_assert(sizeof number == sizeof place);
  std::memcpy(&number, &place, sizeof number);
  return number;
}

bool is_network(hwloc_obj_t os_device) {
  const int type = number_in(os_device->attr->osdev.type);
  return type == HWLOC_OBJ_OSDEV_NETWORK || type == HWLOC_OBJ_OSDEV_OPENFABRICS;
}

/// Returns true when the object, or any object below it, is a GPU or network adapter.
bool leads_to_devices(hwloc_obj_t object) {
  if (is_pci(object)) return is_gpu(object) || is_nic(object);
  for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling)
    if (leads_to_devices(child)) return true;
  return false;
}

/// Returns the CPUs of a set. Throws BadRequest for a CPU number of kMaxCpus or more, or an endless set. A check is
/// needed because a file may say that a node has all CPUs that there can be.
std::vector<int> cpus_in(hwloc_const_cpuset_t set) {
  if (hwloc_bitmap_weight(set) < 0 || hwloc_bitmap_last(set) >= kMaxCpus)
    throw BadRequest(str("[topology] a NUMA node has CPUs of numbers above ", kMaxCpus, ", the most that are allowed"));
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

std::string bus_id_of(const decltype(hwloc_obj_attr_u::pcidev)& pci) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%01x", pci.domain, pci.bus, pci.dev, pci.func);
  return text;
}

/// Returns the bus address of the nearest bridge above that has several ports that lead to devices; empty without one.
/// The functions of one port do not make a switch.
std::string switch_above(hwloc_obj_t device) {
  for (hwloc_obj_t bridge = device->parent; bridge && bridge->type == HWLOC_OBJ_BRIDGE; bridge = bridge->parent) {
    if (number_in(bridge->attr->bridge.upstream_type) != HWLOC_OBJ_BRIDGE_PCI) continue;
    int ports = 0;
    for (hwloc_obj_t child = bridge->io_first_child; child; child = child->next_sibling)
      ports += child->type == HWLOC_OBJ_BRIDGE && leads_to_devices(child);
    if (ports > 1) return bus_id_of(bridge->attr->bridge.upstream.pci);
  }
  return "";
}

std::string pci_name_of(hwloc_obj_t device) {
  for (hwloc_obj_t child = device->io_first_child; child; child = child->next_sibling)
    if (std::string model = info_of(child, "GPUModel"); !model.empty()) return model;
  const std::string vendor = info_of(device, "PCIVendor"), name = info_of(device, "PCIDevice");
  if (!name.empty()) return vendor.empty() ? name : vendor + " " + name;
  char ids[16];
  std::snprintf(ids, sizeof ids, "%04x:%04x", device->attr->pcidev.vendor_id, device->attr->pcidev.device_id);
  return ids;
}

/// Returns the rate in bits per second that /sys gives for a network interface; 0 when /sys gives none, or the link is
/// down.
double rate_of_interface(const std::string& name) {
  double rate = 0;
  if (std::ifstream speed("/sys/class/net/" + name + "/speed"); speed >> rate && rate > 0) return rate * kMega;
  rate = 0;
  if (std::ifstream port("/sys/class/infiniband/" + name + "/ports/1/rate"); port >> rate && rate > 0)
    return rate * kGiga;
  return 0;
}

class Reader {
 public:
  explicit Reader(hwloc_topology_t topology) : topology_(topology) {}

  Machine read() {
    machine_.hostname = info_of(hwloc_get_root_obj(topology_), "HostName");
    core_type_ = hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    machine_.cores = hwloc_get_nbobjs_by_type(topology_, core_type_);
    for (hwloc_obj_t package = nullptr; (package = next(HWLOC_OBJ_PACKAGE, package));)
      machine_.packages.push_back({static_cast<int>(package->os_index), info_of(package, "CPUModel")});
    read_numa_nodes();
    read_pci_devices();
    read_nics_elsewhere();
    read_nvlinks();
    return std::move(machine_);
  }

 private:
  hwloc_obj_t next(hwloc_obj_type_t type, hwloc_obj_t previous) const {
    return hwloc_get_next_obj_by_type(topology_, type, previous);
  }

  /// Returns the number of the one package that contains all of `cpus`. Returns -1 when no package or several packages
  /// have such CPUs.
  int package_of(hwloc_const_cpuset_t cpus) const {
    std::optional<int> found;
    for (hwloc_obj_t package = nullptr; (package = next(HWLOC_OBJ_PACKAGE, package));) {
      if (!hwloc_bitmap_intersects(package->cpuset, cpus)) continue;
      if (found) return -1;
      found = package->os_index;
    }
    return found.value_or(-1);
  }

  void read_numa_nodes() {
    std::vector<hwloc_obj_t> nodes;
    for (hwloc_obj_t node = nullptr; (node = next(HWLOC_OBJ_NUMANODE, node));) {
      const bool beside = std::any_of(nodes.begin(), nodes.end(), [&](hwloc_obj_t other) {
        return hwloc_bitmap_isequal(other->cpuset, node->cpuset);
      });
      const int cores = beside ? 0 : hwloc_get_nbobjs_inside_cpuset_by_type(topology_, node->cpuset, core_type_);
      const uint64_t most = std::numeric_limits<int64_t>::max() - machine_.memory_bytes;
      const int64_t bytes = std::min<uint64_t>(node->attr->numanode.local_memory, most);
      machine_.numa_nodes.push_back(
          {static_cast<int>(node->os_index), package_of(node->cpuset), bytes, cores, cpus_in(node->cpuset)});
      machine_.memory_bytes += bytes;
      nodes.push_back(node);
    }
  }

  /// Sets the package and NUMA node that an object outside the CPUs and memory is attached to.
  template <class Device>
  void place(Device& device, hwloc_obj_t object) const {
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology_, object);
    if (!near) return;
    device.package = near->cpuset ? package_of(near->cpuset) : -1;
    std::vector<int> nodes;
    for (const NumaNode& node : machine_.numa_nodes)
      if (node.cores > 0 && hwloc_bitmap_isset(near->nodeset, node.number)) nodes.push_back(node.number);
    if (nodes.size() == 1) device.numa = nodes.front();
  }

  void read_pci_devices() {
    for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology_, device));) {
      const auto fill = [&](auto& description) {
        description.bus_id = bus_id_of(device->attr->pcidev);
        description.name = pci_name_of(device);
        description.pcie_switch = switch_above(device);
        description.pci_bytes_per_second = static_cast<double>(device->attr->pcidev.linkspeed) * kGiga;
        place(description, device);
      };
      if (is_gpu(device)) {
        fill(machine_.gpus.emplace_back());
        gpus_.emplace(device, machine_.gpus.size() - 1);
      } else if (is_nic(device)) {
        Nic& nic = machine_.nics.emplace_back();
        fill(nic);
        for (hwloc_obj_t child = device->io_first_child; child; child = child->next_sibling)
          if (child->type == HWLOC_OBJ_OS_DEVICE && is_network(child)) name_interface(nic, child);
      }
    }
  }

  void read_nics_elsewhere() {
    for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology_, device));) {
      if (!is_network(device) || (is_pci(device->parent) && is_nic(device->parent))) continue;
      Nic& nic = machine_.nics.emplace_back();
      name_interface(nic, device);
      place(nic, device);
    }
  }

  void name_interface(Nic& nic, hwloc_obj_t os_device) const {
    nic.interfaces.emplace_back(os_device->name ? os_device->name : "");
    if (hwloc_topology_is_thissystem(topology_))
      nic.bits_per_second = std::max(nic.bits_per_second, rate_of_interface(nic.interfaces.back()));
  }

  void read_nvlinks() {
    unsigned count = 1;
    hwloc_distances_s* raw = nullptr;
    if (hwloc_distances_get_by_name(topology_, "NVLinkBandwidth", &count, &raw, 0) != 0 || count == 0) return;
    const auto release = [this](hwloc_distances_s* links) { hwloc_distances_release(topology_, links); };
    const std::unique_ptr<hwloc_distances_s, decltype(release)> links(raw, release);
    join_by_links(*links);
  }

  /// Returns the GPU of a row of the matrix; gpus_.size() for any port of any switch; -1 for anything else. All ports
  /// of all switches count as one end. A GPU has a link to one port of each of several switches, and the matrix does
  /// not say that the switches reach each other.
  int end_of_link(hwloc_obj_t object) const {
    if (!object) return -1;
    if (object->subtype && std::strcmp(object->subtype, "NVSwitch") == 0) return gpus_.size();
    while (object && !is_pci(object) && object->type == HWLOC_OBJ_OS_DEVICE) object = object->parent;
    const auto found = gpus_.find(object);
    return found == gpus_.end() ? -1 : static_cast<int>(found->second);
  }

  void join_by_links(const hwloc_distances_s& links) {
    std::vector<int> group(gpus_.size() + 1);  // by link end: the number of the lowest member of its group
    std::iota(group.begin(), group.end(), 0);
    for (unsigned i = 0; i < links.nbobjs; ++i)
      for (unsigned j = 0; j < links.nbobjs; ++j) {
        const int one = end_of_link(links.objs[i]), other = end_of_link(links.objs[j]);
        const auto rate = static_cast<double>(links.values[i * links.nbobjs + j]) * kMega;
        if (one < 0 || other < 0 || one == other || rate == 0) continue;
        if (one < std::ssize(gpus_)) machine_.gpus[one].nvlink_bytes_per_second += rate;
        const int from = group[one], to = group[other];
        std::replace(group.begin(), group.end(), std::max(from, to), std::min(from, to));
      }
    std::map<int, int> ordinals;
    for (size_t i = 0; i < machine_.gpus.size(); ++i)
      if (machine_.gpus[i].nvlink_bytes_per_second > 0)
        machine_.gpus[i].nvlink_group = ordinals.emplace(group[i], ordinals.size()).first->second;
  }

  hwloc_topology_t topology_;
  hwloc_obj_type_t core_type_ = HWLOC_OBJ_CORE;
  Machine machine_;
  std::map<hwloc_obj_t, size_t> gpus_;  ///< PCI device → index in machine_.gpus
};

}  // namespace

Machine discover_machine() {
  const HwlocTopology topology = new_hwloc_topology(/*with_devices=*/true);
  if (hwloc_topology_load(topology.get()) != 0) throw std::runtime_error("[topology] hwloc cannot read this host");
  Machine machine = Reader(topology.get()).read();
  if (!hwloc_topology_is_thissystem(topology.get()) && !machine.hostname.empty()) return machine;
  char hostname[256] = {};
  ::gethostname(hostname, sizeof hostname - 1);
  machine.hostname = hostname;
  if (machine.memory_bytes == 0)  // hwloc reads it from /sys, which a container may not have
    machine.memory_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  return machine;
}

Machine import_machine(const std::string& checked_xml) {
  const HwlocTopology topology = new_hwloc_topology(/*with_devices=*/true);
  const int size = checked_xml.size() + 1;
  errno = 0;
  if (hwloc_topology_set_xmlbuffer(topology.get(), checked_xml.c_str(), size) != 0 ||
      hwloc_topology_load(topology.get()) != 0)
    throw BadRequest(std::strerror(errno));
  return Reader(topology.get()).read();
}

Machine machine_from_xml(const std::string& xml) {
  const std::string wrong = "hwloc finds no machine in it; allowed: XML as lstopo writes it (";
  try {
    check_machine_xml(xml);
    return machine_from_json(parse_json(in_child([&] { return to_json(import_machine(xml)).dump(); }, kMaxImport)));
  } catch (const BadRequest& error) {
    throw BadRequest(str(wrong, error.what(), ")"));
  }
}

Machine read_machine(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw BadRequest(str("[topology] cannot read '", file.string(), "': ", why));
  };
  try {
    Machine machine = machine_from_xml(read_text_file(file, kMaxXml));
    if (machine.hostname.empty()) machine.hostname = file.filename().string();
    return machine;
  } catch (const BadRequest& error) {
    refuse(error.what());
    throw;
  }
}

Machine synthetic_machine(const std::string& description) {
  const HwlocTopology topology = new_hwloc_topology(/*with_devices=*/true);
  if (hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0 ||
      hwloc_topology_load(topology.get()) != 0)
    throw BadRequest(str("[topology] hwloc cannot make a machine of '", description,
                         "'; allowed: levels and their widths, as in 'package:2 numa:2 core:4 pu:1'"));
  return Reader(topology.get()).read();
}

}  // namespace spillway
