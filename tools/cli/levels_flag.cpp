#include "tools/cli/levels_flag.h"

#include <cctype>

#include "core/device/cuda_device.h"
#include "core/error.h"
#include "core/host/host_topology.h"
#include "core/host/locality.h"
#include "ddl/comm/collectives.h"
#include "ddl/topology/discover_levels.h"
#include "tools/cli/launch.h"
#include "tools/cli/numbers.h"

namespace spillway::tools {
namespace {

constexpr const char* kHosts = "hosts";
constexpr const char* kDiscover = "discover";

bool is_file(const std::string& text) {
  return text.ends_with(".xml");
}

ddl::Levels parse_levels(const std::string& text, int size) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front())))
    throw BadRequest(str("--levels is '", text,
                         "'; allowed: hosts, discover, a FILE.xml that lstopo wrote, ranks per host x hosts x …, as in "
                         "4x2, or the ranks of each host, as in 4+2"));
  return ddl::Levels::parse(text, size);
}

Nearness nearness_in_file(ddl::Communicator& comm, const std::string& file, const std::string& gpu_bus_id) {
  Nearness near;
  std::string refusal;
  try {
    const Machine machine = read_machine(file);
    const std::vector<int> cpus = cpus_of_this_thread();
    require_in(machine, cpus, gpu_bus_id);
    near = nearness_of(machine, cpus, gpu_bus_id);
  } catch (const BadRequest& error) {
    refusal = str("--levels ", file, ": ", error.what(), " (rank ", comm.rank(), ")");
  }
  ddl::throw_on_all_ranks(comm, refusal);
  return near;
}

}  // namespace

void add_levels_flag(CLI::App& command, std::string& text) {
  command
      .add_option("--levels", text,
                  "Levels of the topology: hosts, discover, a FILE.xml of lstopo, or declared as in 4x2 or 4+2")
      ->type_name("LEVELS")
      ->capture_default_str();
}

void add_comm_timeout_flag(CLI::App& command, double& seconds) {
  add_number(command, "--comm-timeout", seconds, "Seconds to wait for another rank")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(between(0.001, 86400));
}

std::string bus_id_of(const Device& device) {
  const c10::Device torch_device = device.torch_device();
  return torch_device.is_cuda() ? CudaDevice::open(torch_device.index()).pci_bus_id() : "";
}

std::shared_ptr<ddl::Communicator> with_levels(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world,
                                               ddl::CommOptions options, const std::string& text,
                                               const std::string& gpu_bus_id) {
  if (text == kHosts) return world;
  if (text == kDiscover || is_file(text)) {
    take_share_of_cores(*world);
    const Nearness near = is_file(text) ? nearness_in_file(*world, text, gpu_bus_id)
                                        : nearness_of(discover_machine(), cpus_of_this_thread(), gpu_bus_id);
    options.levels = ddl::discover_levels(*world, near);
  } else {
    options.levels = parse_levels(text, world->size()).labels();
  }
  return mpi.world(std::move(options));
}

void check_levels_alone(const std::string& text) {
  if (is_file(text))
    (void)read_machine(text);
  else if (text != kHosts && text != kDiscover)
    (void)parse_levels(text, 1);
}

Machine machine_for_levels(const std::string& text) {
  if (!is_file(text)) return discover_machine();
  Machine machine = read_machine(text);
  machine.hostname = discover_host().hostname;
  return machine;
}

}  // namespace spillway::tools
