/// The check that the ranks of a launch have the same options. Ranks that were started with unlike options would wait
/// for messages that never come.
#pragma once
#include <CLI/CLI.hpp>

#include "ddl/comm/communicator.h"

namespace spillway::tools {

/// Refuses, on every rank, options of `command` that some rank has unlike rank 0, and names the first such option. Each
/// rank may have its own folders and its own device, and a budget of its own bytes where every rank has one.
/// `--host-budget`, and options of output that only rank 0 writes, may be given to any rank. Costs two broadcasts and
/// an all-gather of a few bytes. Collective. Throws BadRequest, CommError.
void require_same_options(const CLI::App& command, ddl::Communicator& comm);

}  // namespace spillway::tools
