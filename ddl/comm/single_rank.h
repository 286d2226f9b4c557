/// A world of one rank.
#pragma once
#include <memory>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Makes the communicator of a process that runs alone: every collective returns at once. Needs no MPI.
std::shared_ptr<Communicator> self_communicator(CommOptions options = {});

}  // namespace spillway::ddl
