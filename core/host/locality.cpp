#include "core/host/locality.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "core/error.h"

namespace spillway {
namespace {

bool contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

std::string lower_case(std::string text) {
  for (char& letter : text) letter = std::tolower(static_cast<unsigned char>(letter));
  return text;
}

const Gpu* find_gpu(const Machine& machine, const std::string& bus_id) {
  const auto found =
      std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& gpu) { return gpu.bus_id == bus_id; });
  return found == machine.gpus.end() ? nullptr : &*found;
}

/// Returns the nodes that `is_near` picks; none when it picks all nodes.
template <class IsNear>
std::vector<int> nodes_where(const Machine& machine, IsNear is_near) {
  std::vector<int> numbers;
  for (const NumaNode& node : machine.numa_nodes)
    if (is_near(node)) numbers.push_back(node.number);
  if (numbers.size() == machine.numa_nodes.size()) numbers.clear();
  return numbers;
}

}  // namespace

Nearness nearness_of(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id) {
  if (gpu_bus_id.empty())
    return {.link = {}, .pcie_switch = {}, .numa_nodes = nodes_where(machine, [&](const NumaNode& node) {
                                             return std::any_of(cpus.begin(), cpus.end(),
                                                                [&](int cpu) { return contains(node.cpus, cpu); });
                                           })};
  const std::string bus_id = lower_case(gpu_bus_id);
  const Gpu* gpu = find_gpu(machine, bus_id);
  if (!gpu) return {.link = bus_id, .pcie_switch = {}, .numa_nodes = {}};
  return {.link = gpu->nvlink_group < 0 ? bus_id : str("NVLink ", gpu->nvlink_group),
          .pcie_switch = gpu->pcie_switch,
          .numa_nodes = nodes_where(machine, [&](const NumaNode& node) {
            return gpu->numa >= 0 ? node.number == gpu->numa : gpu->package >= 0 && node.package == gpu->package;
          })};
}

void require_in(const Machine& machine, const std::vector<int>& cpus, const std::string& gpu_bus_id) {
  if (!gpu_bus_id.empty()) {
    if (find_gpu(machine, lower_case(gpu_bus_id))) return;
    std::string there;
    for (const Gpu& gpu : machine.gpus) there += str(there.empty() ? "" : ", ", gpu.bus_id);
    throw BadRequest(str("[topology] ", machine.hostname, " has no GPU ", lower_case(gpu_bus_id),
                         "; GPUs there: ", there.empty() ? "none" : there));
  }
  std::set<int> there;
  for (const NumaNode& node : machine.numa_nodes) there.insert(node.cpus.begin(), node.cpus.end());
  for (const int cpu : cpus)
    if (!there.contains(cpu))
      throw BadRequest(str("[topology] ", machine.hostname, " has no CPU ", cpu, "; CPUs there: ", there.size(),
                           there.empty() ? "" : str(", from ", *there.begin(), " to ", *there.rbegin())));
}

}  // namespace spillway
