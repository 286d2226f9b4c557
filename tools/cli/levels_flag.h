/// --levels: which ranks are near each other, as declared or as found.
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

/// Where a card is, as with_levels() takes it; empty: it is no card.
std::string bus_id_of(const Device& device);

/// A communicator with the levels that `text` asks for: `world`, which has those of hosts, or another one over the same
/// processes with the same options. With `discover` and a file each rank first takes its share of its host's cores, as
/// in training: who may run anywhere is near no memory. `gpu_bus_id` is where the card is that this rank uses, as
/// nearness_of() takes it; empty: none. Collective. Throws BadRequest, on all ranks when the file of one cannot be read
/// or lacks its CPUs or card, CommError.
std::shared_ptr<ddl::Communicator> with_levels(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world,
                                               ddl::CommOptions options, const std::string& text,
                                               const std::string& gpu_bus_id);

/// The same for a process that runs alone: throws BadRequest when `text` asks for more, or its file cannot be read.
void check_levels_alone(const std::string& text);

/// The machine that `text` is looked up in: its file's under this host's name, else this host. Throws BadRequest.
Machine machine_for_levels(const std::string& text);

}  // namespace spillway::tools
