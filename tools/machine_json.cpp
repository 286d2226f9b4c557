#include "tools/machine_json.h"

#include <nlohmann/json.hpp>

namespace spillway::tools {
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

void read(const json& value, int& number) {
  number = value.is_null() ? -1 : value.get<int>();
}
void read(const json& value, double& rate) {
  rate = value.is_null() ? 0 : value.get<double>();
}
void read(const json& value, std::string& text) {
  text = value.is_null() ? "" : value.get<std::string>();
}

/// What GPUs and network adapters have in common.
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
  value.at("cores").get_to(machine.cores);
  value.at("memory_bytes").get_to(machine.memory_bytes);
  for (const json& one : value.at("packages")) {
    Package& package = machine.packages.emplace_back();
    one.at("number").get_to(package.number);
    read(one.at("model"), package.model);
  }
  for (const json& one : value.at("numa")) {
    NumaNode& node = machine.numa_nodes.emplace_back();
    one.at("number").get_to(node.number);
    read(one.at("package"), node.package);
    one.at("memory_bytes").get_to(node.memory_bytes);
    one.at("cores").get_to(node.cores);
    one.at("cpus").get_to(node.cpus);
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

}  // namespace spillway::tools
