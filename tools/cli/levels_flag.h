/// The flag --levels, which says which ranks are near each other, as declared or as found.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/host/machine.h"
#include "ddl/comm/mpi.h"

namespace spillway::tools {

/// Adds `--levels`: `hosts`, `discover`, a file of hwloc's, or a shape. `text` holds the default.
void add_levels_flag(CLI::App& command, std::string& text);

/// Adds `--comm-timeout`, which comm_options() takes. `seconds` holds the default.
void add_comm_timeout_flag(CLI::App& command, double& seconds);

/// Returns the PCI bus ID of a GPU, as with_levels() takes it; empty when the device is no GPU.
std::string bus_id_of(const Device& device);

/// Returns a communicator with the levels that `text` asks for. It is `world`, which has the levels of hosts, or
/// another one over the same processes with the same options. With `discover` and with a file, each rank first takes
/// its share of its host's cores, as in training. The reason is that a rank that may run anywhere is near no memory.
/// `gpu_bus_id` is the bus ID of the GPU that this rank uses, as nearness_of() takes it; empty for none. Collective.
/// Throws CommError and BadRequest; the latter on all ranks when the file of one rank cannot be read or lacks its CPUs
/// or GPU.
std::shared_ptr<ddl::Communicator> with_levels(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world,
                                               ddl::CommOptions options, const std::string& text,
                                               const std::string& gpu_bus_id);

/// Checks `text` for a process that runs alone. Throws BadRequest when `text` asks for more ranks, or its file cannot
/// be read.
void check_levels_alone(const std::string& text);

/// Returns the machine that `text` is looked up in: its file's under this host's name, else this host. Throws
/// BadRequest.
Machine machine_for_levels(const std::string& text);

}  // namespace spillway::tools
