#include "core/host/machine_json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace spillway {
namespace {

using nlohmann::json;

json known(int number) {
  return number < 0 ? json(nullptr) : json(number);
}
json known(double rate) {
  return rate > 0 ? json(rate) : json(nullptr);
}
json known(const std::string& text) {
  return text.empty() ? json(nullptr) : json(text);
}

int whole(const json& value, const char* what) {
  return whole_number(value, what, -1, std::numeric_limits<int>::max());  // -1: hwloc does not know
}
void read(const json& value, int& number) {
  number = value.is_null() ? -1 : whole(value, "a number");
}
void read(const json& value, double& rate) {
  rate = value.is_null() ? 0 : value.get<double>();
  if (rate < 0) throw BadRequest(str("a rate is ", value.dump(), "; allowed: 0 and more"));
}
void read(const json& value, std::string& text) {
  text = value.is_null() ? "" : value.get<std::string>();
}

/// Returns the JSON of the fields that GPUs and network adapters have in common.
template <class Device>
json device_json(const Device& device) {
  return {{"bus_id", known(device.bus_id)},           {"name", known(device.name)},
          {"package", known(device.package)},         {"numa", known(device.numa)},
          {"pcie_switch", known(device.pcie_switch)}, {"pci_bytes_per_second", known(device.pci_bytes_per_second)}};
}

template <class Device>
Device device_from(const json& value) {
  Device device;
  read(value.at("bus_id"), device.bus_id);
  read(value.at("name"), device.name);
  read(value.at("package"), device.package);
  read(value.at("numa"), device.numa);
  read(value.at("pcie_switch"), device.pcie_switch);
  read(value.at("pci_bytes_per_second"), device.pci_bytes_per_second);
  return device;
}

}  // namespace

json to_json(const Machine& machine) {
  json packages = json::array(), numa = json::array(), gpus = json::array(), nics = json::array();
  for (const Package& package : machine.packages)
    packages.push_back({{"number", package.number}, {"model", known(package.model)}});
  for (const NumaNode& node : machine.numa_nodes)
    numa.push_back({{"number", node.number},
                    {"package", known(node.package)},
                    {"memory_bytes", node.memory_bytes},
                    {"cores", node.cores},
                    {"cpus", node.cpus}});
  for (const Gpu& gpu : machine.gpus) {
    json& one = gpus.emplace_back(device_json(gpu));
    one["nvlink_group"] = known(gpu.nvlink_group);
    one["nvlink_bytes_per_second"] = known(gpu.nvlink_bytes_per_second);
  }
  for (const Nic& nic : machine.nics) {
    json& one = nics.emplace_back(device_json(nic));
    one["interfaces"] = nic.interfaces;
    one["bits_per_second"] = known(nic.bits_per_second);
  }
  return {{"hostname", machine.hostname},
          {"cores", machine.cores},
          {"memory_bytes", machine.memory_bytes},
          {"packages", packages},
          {"numa", numa},
          {"gpus", gpus},
          {"nics", nics}};
}

Machine machine_from_json(const json& value) {
  Machine machine;
  value.at("hostname").get_to(machine.hostname);
  machine.cores = whole(value.at("cores"), "cores");
  machine.memory_bytes = whole_number(value.at("memory_bytes"), "memory_bytes");
  for (const json& one : value.at("packages")) {
    Package& package = machine.packages.emplace_back();
    package.number = whole(one.at("number"), "a package's number");
    read(one.at("model"), package.model);
  }
  for (const json& one : value.at("numa")) {
    NumaNode& node = machine.numa_nodes.emplace_back();
    node.number = whole(one.at("number"), "a NUMA node's number");
    read(one.at("package"), node.package);
    node.memory_bytes = whole_number(one.at("memory_bytes"), "memory_bytes");
    node.cores = whole(one.at("cores"), "cores");
    for (const json& cpu : one.at("cpus")) node.cpus.push_back(whole(cpu, "a CPU"));
  }
  for (const json& one : value.at("gpus")) {
    Gpu& gpu = machine.gpus.emplace_back(device_from<Gpu>(one));
    read(one.at("nvlink_group"), gpu.nvlink_group);
    read(one.at("nvlink_bytes_per_second"), gpu.nvlink_bytes_per_second);
  }
  for (const json& one : value.at("nics")) {
    Nic& nic = machine.nics.emplace_back(device_from<Nic>(one));
    one.at("interfaces").get_to(nic.interfaces);
    read(one.at("bits_per_second"), nic.bits_per_second);
  }
  return machine;
}

}  // namespace spillway
