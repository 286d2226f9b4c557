/// One rank of a world whose other ranks are not there.
#pragma once
#include <memory>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Makes the communicator of `rank` in a world of `levels.size()` ranks that is not there, so that a rank's work can be
/// looked at without the others. Collectives return at once. Agreements hold. What another rank would have sent is
/// undefined, but for allgather(): there every rank has sent what this one has. Groups of level 1 are the hosts. Throws
/// BadRequest when the world has no such rank.
std::shared_ptr<Communicator> simulated_communicator(int rank, const Levels& levels);

}  // namespace spillway::ddl
