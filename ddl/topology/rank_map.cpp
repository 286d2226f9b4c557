#include "ddl/topology/rank_map.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/host/host_topology.h"
#include "core/host/locality.h"
#include "core/host/machine_json.h"
#include "core/json_text.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/transport.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

/// Returns every rank's text, on rank 0.
std::vector<std::string> gather(ddl::Communicator& comm, const std::string& own) {
  const auto length = std::ssize(own);
  std::vector<int64_t> lengths(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::vector<std::string> texts(lengths.size());
  std::vector<ddl::Request> requests;
  if (comm.rank() != 0) requests.push_back(comm.send(0, ddl::Tag::blob, std::as_bytes(std::span(own))));
  for (int rank = 1; comm.rank() == 0 && rank < comm.size(); ++rank) {
    auto& text = texts[rank];
    text.resize(lengths[rank]);
    requests.push_back(comm.receive(rank, ddl::Tag::blob, std::as_writable_bytes(std::span(text))));
  }
  comm.wait(requests, {.collective = "gathering of machines", .stage = 1});
  if (comm.rank() == 0) texts.front() = own;
  return texts;
}

/// Returns `NUMA node 0` or `NUMA nodes 0, 1`; empty when the ranks are not near the same certain nodes.
std::string memory_of(const RankMap& map, const std::vector<int>& ranks) {
  const auto& nodes = map.numa_nodes[ranks.front()];
  for (const int rank : ranks)
    if (map.numa_nodes[rank] != nodes) return "";
  std::string text;
  for (const int node : nodes) text += str(text.empty() ? "" : ", ", node);
  return text.empty() ? "" : str(nodes.size() == 1 ? "NUMA node " : "NUMA nodes ", text);
}

std::set<int> hosts_of(const RankMap& map, const std::vector<int>& ranks) {
  std::set<int> hosts;
  for (const int rank : ranks) hosts.insert(map.hosts[rank]);
  return hosts;
}

bool is_whole_host(const RankMap& map, const std::vector<int>& ranks) {
  const int host = map.hosts[ranks.front()];
  return hosts_of(map, ranks).size() == 1 && std::count(map.hosts.begin(), map.hosts.end(), host) == std::ssize(ranks);
}

std::string kind_of(const RankMap& map, const std::vector<int>& ranks) {
  if (hosts_of(map, ranks).size() > 1) return "groups of hosts";
  if (is_whole_host(map, ranks)) return "hosts";
  if (ranks.size() == 1) return "ranks";
  return memory_of(map, ranks).empty() ? "parts of a host" : "NUMA nodes";
}

/// Numbers hosts that share one name, for example containers.
void tell_apart(std::vector<Machine>& machines) {
  std::map<std::string, int> seen;
  for (const Machine& machine : machines) ++seen[machine.hostname];
  for (size_t host = 0; host < machines.size(); ++host)
    if (seen[machines[host].hostname] > 1) machines[host].hostname += str("#", host);
}

}  // namespace

RankMap gather_rank_map(ddl::Communicator& comm, const Machine& machine) {
  RankMap map{.levels = comm.levels(), .machines = {}, .hosts = comm.hosts(), .cpus = {}, .numa_nodes = {}};
  const auto cpus = cpus_of_this_thread();
  json own = {{"cpus", cpus}, {"numa_nodes", nearness_of(machine, cpus, "").numa_nodes}};
  if (comm.local_rank() == 0) own["machine"] = to_json(machine);
  for (const std::string& text : gather(comm, json_text(own))) {
    if (text.empty()) continue;
    const json of_rank = json::parse(text);
    map.cpus.push_back(of_rank["cpus"]);
    map.numa_nodes.push_back(of_rank["numa_nodes"]);
    if (of_rank.contains("machine")) map.machines.push_back(machine_from_json(of_rank["machine"]));
  }
  tell_apart(map.machines);
  return map;
}

std::string name_of_group(const RankMap& map, const std::vector<int>& ranks) {
  if (const auto hosts = hosts_of(map, ranks).size(); hosts > 1) return str(hosts, " hosts");
  const std::string& host = map.hostname_of(ranks.front());
  if (is_whole_host(map, ranks)) return "host " + host;
  if (ranks.size() == 1) return str("rank ", ranks.front());
  const std::string memory = memory_of(map, ranks);
  return memory.empty() ? "part of host " + host : memory;
}

std::string joined_by(const RankMap& map, int level) {
  for (const auto& group : map.levels.groups(level)) {
    if (group.children.size() == 1) continue;
    const int child = group.children.front();
    return kind_of(map, level == 1 ? std::vector{child} : map.levels.groups(level - 1)[child].ranks);
  }
  return "";
}

}  // namespace spillway::tools
