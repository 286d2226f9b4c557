/// --levels: which ranks are near each other, as declared or as found.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "ddl/mpi.h"

namespace spillway::tools {

/// Adds `--levels`: `hosts`, `discover`, or a shape. `text` holds the default.
void add_levels_flag(CLI::App& command, std::string& text);

/// A communicator with the levels that `text` asks for: `world`, which has those of hosts, or another one over the same
/// processes with the same options. With `discover` each rank first takes its share of its host's cores, as in
/// training: who may run anywhere is near no memory. Collective. Throws BadRequest, CommError.
std::shared_ptr<ddl::Communicator> with_levels(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world,
                                               ddl::CommOptions options, const std::string& text);

/// The same for a process that runs alone: throws BadRequest when `text` asks for more.
void check_levels_alone(const std::string& text);

/// Lets this rank run on its share of its host's cores, whatever the launcher bound it to.
void take_share_of_cores(const ddl::Communicator& comm);

}  // namespace spillway::tools
