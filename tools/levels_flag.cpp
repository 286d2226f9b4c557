#include "tools/levels_flag.h"

#include <cctype>

#include "core/error.h"
#include "core/topology.h"
#include "ddl/discovery.h"

namespace spillway::tools {
namespace {

constexpr const char* kHosts = "hosts";
constexpr const char* kDiscover = "discover";

ddl::Levels parse_shape(const std::string& text, int size) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front())))
    throw BadRequest(str("--levels is '", text,
                         "'; allowed: hosts, discover, ranks per host x hosts x …, as in 4x2, or the ranks of each "
                         "host, as in 4+2"));
  return ddl::Levels::parse(text, size);
}

}  // namespace

void add_levels_flag(CLI::App& command, std::string& text) {
  command
      .add_option("--levels", text,
                  "Which ranks are near each other: hosts; discover (NUMA nodes, hosts, groups of hosts by measured "
                  "latency); or declared, ranks per host x hosts x …, as in 4x2, or of each host, as in 4+2")
      ->capture_default_str();
}

std::shared_ptr<ddl::Communicator> with_levels(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world,
                                               ddl::CommOptions options, const std::string& text) {
  if (text == kHosts) return world;
  if (text == kDiscover) {
    take_share_of_cores(*world);
    options.levels = ddl::discover_levels(*world, numa_nodes_near(cpus_of_this_thread()));
  } else {
    options.levels = parse_shape(text, world->size()).labels();
  }
  return mpi.world(std::move(options));
}

void check_levels_alone(const std::string& text) {
  if (text != kHosts && text != kDiscover) (void)parse_shape(text, 1);
}

void take_share_of_cores(const ddl::Communicator& comm) {
  set_affinity(cpus_of_rank(discover_host(), comm.local_rank(), comm.local_size()));
}

}  // namespace spillway::tools
