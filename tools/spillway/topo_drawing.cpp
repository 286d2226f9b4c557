#include "tools/spillway/topo_drawing.h"

#include <algorithm>
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::tools {
namespace {

struct Node {
  std::string text;
  std::vector<Node> children{};
};

void draw(const Node& node, const std::string& indent, std::string& out) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const bool last = i + 1 == node.children.size();
    out += str(indent, last ? "└─ " : "├─ ", node.children[i].text, "\n");
    draw(node.children[i], indent + (last ? "   " : "│  "), out);
  }
}

std::string draw(const Node& root) {
  std::string out = root.text + "\n";
  draw(root, "", out);
  return out;
}

template <class... Values>
std::string printed(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

void add(std::string& text, const std::string& part) {
  if (!part.empty()) text += str(text.empty() ? "" : ", ", part);
}

std::string rate(const char* what, double bytes_per_second) {
  return bytes_per_second > 0 ? str(what, printed("%.3g GB/s", bytes_per_second / 1e9)) : "";
}

std::string count(int number, const char* what) {
  return number > 0 ? str(number, " ", what, number == 1 ? "" : "s") : "";
}

std::string line_of(const char* kind, const std::string& bus_id, const std::string& facts) {
  return str(kind, bus_id.empty() ? "" : " ", bus_id, facts.empty() ? "" : ": ", facts);
}

std::string line_of(const Gpu& gpu) {
  std::string facts = gpu.name;
  add(facts, rate("PCIe ", gpu.pci_bytes_per_second));
  if (gpu.nvlink_group >= 0)
    add(facts, str(rate("NVLink ", gpu.nvlink_bytes_per_second), " (group ", gpu.nvlink_group, ")"));
  return line_of("GPU", gpu.bus_id, facts);
}

std::string line_of(const Nic& nic) {
  std::string facts;
  for (const std::string& interface : nic.interfaces) add(facts, interface);
  add(facts, nic.name);
  if (nic.bits_per_second > 0) add(facts, printed("%.3g Gbit/s", nic.bits_per_second / 1e9));
  add(facts, rate("PCIe ", nic.pci_bytes_per_second));
  return line_of("NIC", nic.bus_id, facts);
}

/// Adds the devices that are near the NUMA node `numa`. When `numa` is negative, adds those near `package` and no
/// certain node.
void add_devices(const Machine& machine, int package, int numa, Node& to) {
  const auto add_device = [&](const auto& device) {
    if (device.numa != numa || (numa < 0 && device.package != package)) return;
    Node* parent = &to;
    if (!device.pcie_switch.empty()) {
      const std::string text = "PCIe switch " + device.pcie_switch;
      auto found = std::find_if(to.children.begin(), to.children.end(), [&](auto& one) { return one.text == text; });
      parent = found == to.children.end() ? &to.children.emplace_back(Node{text}) : &*found;
    }
    parent->children.push_back({line_of(device)});
  };
  for (const Gpu& gpu : machine.gpus) add_device(gpu);
  for (const Nic& nic : machine.nics) add_device(nic);
}

void add_numa_nodes(const Machine& machine, int package, Node& to) {
  for (const NumaNode& node : machine.numa_nodes) {
    if (node.package != package) continue;
    std::string facts = count(node.cores, "core");
    if (node.memory_bytes > 0) add(facts, format_bytes(node.memory_bytes));
    Node& child = to.children.emplace_back(Node{line_of("NUMA node", std::to_string(node.number), facts)});
    add_devices(machine, package, node.number, child);
  }
}

Node node_of(const Machine& machine) {
  Node root{str(count(machine.cores, "core"), ", ", format_bytes(machine.memory_bytes))};
  for (const Package& package : machine.packages) {
    Node& child = root.children.emplace_back(Node{line_of("package", std::to_string(package.number), package.model)});
    add_numa_nodes(machine, package.number, child);
    add_devices(machine, package.number, -1, child);
  }
  add_numa_nodes(machine, -1, root);
  add_devices(machine, -1, -1, root);
  return root;
}

/// Returns ascending numbers with runs put together: `0-3, 8`.
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    add(text, end - i > 1 ? str(numbers[i], "-", numbers[end - 1]) : str(numbers[i]));
    i = end;
  }
  return text;
}

Node node_of(const RankMap& map, int level, int group) {
  const auto& [ranks, children] = map.levels.groups(level)[group];
  if (children.size() == 1 && level > 1) return node_of(map, level - 1, children.front());
  Node node{name_of_group(map, ranks)};
  if (level > 1) {
    for (const int child : children) node.children.push_back(node_of(map, level - 1, child));
  } else if (std::all_of(ranks.begin(), ranks.end(), [&, first = ranks.front()](int rank) {
               return map.hostname_of(rank) == map.hostname_of(first);
             })) {
    node.text += str(ranks.size() == 1 ? ": rank " : ": ranks ", ranges(ranks));
  } else {
    for (const int rank : ranks) node.children.push_back({str("host ", map.hostname_of(rank), ": rank ", rank)});
  }
  return node;
}

}  // namespace

std::string draw_machines(const std::vector<Machine>& machines) {
  std::vector<std::pair<std::string, std::string>> trees;  // names of machines, and the tree that they share
  for (const Machine& machine : machines) {
    const std::string tree = draw(node_of(machine));
    const auto found = std::find_if(trees.begin(), trees.end(), [&](const auto& one) { return one.second == tree; });
    add(found == trees.end() ? trees.emplace_back("", tree).first : found->first, machine.hostname);
  }
  std::string out;
  for (const auto& [names, tree] : trees) out += str(names, ": ", tree);
  return out;
}

std::string draw_ranks(const RankMap& map) {
  if (map.levels.count() == 0) return "1 rank\n";
  std::string out = str("levels ", map.levels.shape(), "\n");
  draw({"", {node_of(map, map.levels.count(), 0)}}, "", out);
  return out;
}

std::string draw_links(const RankMap& map, const ddl::Costs& costs) {
  std::string out;
  for (size_t i = 0; i < costs.levels.size(); ++i) {
    const auto& link = costs.levels[i];
    out += str("level ", i + 1, ", between ", joined_by(map, i + 1), ": ",
               printed("%.1f us, %.3g GB/s a link", 1e6 * link.latency_seconds, link.bytes_per_second / 1e9), "\n");
  }
  return out;
}

std::string draw_latencies(const RankMap& map, const std::vector<std::vector<double>>& seconds) {
  size_t width = 8;
  for (const Machine& machine : map.machines) width = std::max(width, machine.hostname.size() + 2);
  const auto cell = [&](const std::string& text) {
    return std::string(width - std::min(width, text.size()), ' ') + text;
  };
  std::string out = "latency between hosts, us\n" + cell("");
  for (const Machine& machine : map.machines) out += cell(machine.hostname);
  for (size_t a = 0; a < seconds.size(); ++a) {
    out += str("\n", cell(map.machines[a].hostname));
    for (size_t b = 0; b < seconds.size(); ++b) out += cell(a == b ? "-" : printed("%.1f", 1e6 * seconds[a][b]));
  }
  return out + "\n";
}

}  // namespace spillway::tools
