// spillway topo: the machine, and under mpirun the ranks on their machines and the costs of the links between them.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/host/machine.h"
#include "core/host/machine_json.h"
#include "ddl/allreduce/calibration.h"
#include "ddl/comm/mpi.h"
#include "ddl/topology/discover_levels.h"
#include "tools/cli/command.h"
#include "tools/cli/launch.h"
#include "tools/cli/levels_flag.h"
#include "tools/cli/same_options.h"
#include "tools/cli/write_json.h"
#include "tools/spillway/topo_drawing.h"

namespace spillway::tools {
namespace {

using nlohmann::json;

struct TopoOptions {
  std::string xml, json_file, levels = "hosts";
  bool measure = false;
  double comm_timeout_seconds = 60;
};

void conclude(const TopoOptions& options, const std::vector<Machine>& machines, json rest) {
  if (options.json_file.empty()) return;
  json hosts = json::array();
  for (const Machine& machine : machines) hosts.push_back(to_json(machine));
  rest["hosts"] = hosts;
  write_json(rest, options.json_file);
}

int draw_alone(const TopoOptions& options) {
  if (options.measure)
    throw BadRequest("--measure: links are between ranks, and this process runs alone; start it with mpirun");
  if (!options.xml.empty() && options.levels != "hosts")
    throw BadRequest("--levels are the ranks'; not with --xml, where nobody runs");
  check_levels_alone(options.levels);
  const std::vector<Machine> machines{options.xml.empty() ? machine_for_levels(options.levels)
                                                          : read_machine(options.xml)};
  std::fputs(draw_machines(machines).c_str(), stdout);
  conclude(
      options, machines,
      {{"levels", nullptr}, {"ranks", json::array()}, {"links", json::array()}, {"host_latency_seconds", nullptr}});
  return kOk;
}

json ranks_of(const RankMap& map) {
  json ranks = json::array();
  for (int rank = 0; rank < map.levels.size(); ++rank) {
    json groups = json::array();
    for (int level = 1; level <= map.levels.count(); ++level) groups.push_back(map.levels.group_of(level, rank));
    ranks.push_back({{"rank", rank},
                     {"host", map.hostname_of(rank)},
                     {"cpus", map.cpus[rank]},
                     {"numa_nodes", map.numa_nodes[rank]},
                     {"groups", groups}});
  }
  return ranks;
}

json links_of(const RankMap& map, const ddl::Costs& costs) {
  json links = json::array();
  for (const ddl::LinkCost& link : costs.levels) {
    const int level = std::ssize(links) + 1;
    links.push_back({{"level", level},
                     {"between", joined_by(map, level)},
                     {"latency_seconds", link.latency_seconds},
                     {"bytes_per_second", link.bytes_per_second}});
  }
  return links;
}

int draw_launch(const TopoOptions& options, const CLI::App& command) {
  const ddl::CommOptions of_comm = comm_options(options.comm_timeout_seconds);
  ddl::MpiRuntime mpi(of_comm.deadline);
  if (!options.xml.empty())
    throw BadRequest("--xml draws a file's machine, where nobody runs; start it without mpirun");
  auto world = mpi.world(of_comm);
  require_same_options(command, *world);
  if (options.measure && world->size() == 1)
    throw BadRequest("--measure: links are between ranks, and there is 1; allowed: 2 and more");
  take_share_of_cores(*world);
  const auto comm = with_levels(mpi, std::move(world), of_comm, options.levels, /*gpu_bus_id=*/"");
  const RankMap map = gather_rank_map(*comm, machine_for_levels(options.levels));
  ddl::Costs costs;
  std::vector<std::vector<double>> latencies;
  if (options.measure) {
    latencies = ddl::measure_host_latencies(*comm);
    costs = ddl::calibrate(*comm);
  }
  if (comm->rank() != 0) return kOk;
  const bool several = latencies.size() > 1;
  std::string text = draw_machines(map.machines) + draw_ranks(map) + draw_links(map, costs);
  if (several) text += draw_latencies(map, latencies);
  std::fputs(text.c_str(), stdout);
  conclude(options, map.machines,
           {{"levels", map.levels.shape()},
            {"ranks", ranks_of(map)},
            {"links", links_of(map, costs)},
            {"host_latency_seconds", several ? json(latencies) : json(nullptr)}});
  return kOk;
}

}  // namespace

Run add_topo(CLI::App& app) {
  auto options = std::make_shared<TopoOptions>();
  CLI::App* command = app.add_subcommand(
      "topo",
      "Draws this machine's NUMA nodes, GPUs and network adapters; under mpirun every host's, and the ranks by level");
  command
      ->add_option("--xml", options->xml, "Draw the machine that an XML file of lstopo describes, instead of this one")
      ->type_name("FILE")
      ->default_str("none");
  command->add_flag("--measure", options->measure,
                    "Under mpirun: measure latency and bandwidth of each level's links, and latencies between hosts");
  add_levels_flag(*command, options->levels);
  add_comm_timeout_flag(*command, options->comm_timeout_seconds);
  command->add_option("--json", options->json_file, "File for the results")->type_name("FILE")->default_str("none");
  command->footer("Example: mpirun -np 4 --bind-to none spillway topo --levels discover --measure");
  return [options, command] { return ddl::launched_by_mpi() ? draw_launch(*options, *command) : draw_alone(*options); };
}

}  // namespace spillway::tools
