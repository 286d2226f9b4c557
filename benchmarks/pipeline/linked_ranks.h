/// Ranks as threads whose messages take as long as on a link.
#pragma once
#include <functional>

namespace spillway::ddl {
class Communicator;
}

namespace spillway::tools {

/// Runs `body` once per rank, each on its own thread, and returns when all have ended. Messages that a rank sends leave
/// one after the other, at `bytes_per_second`; 0: as fast as memory is. Throws the error of the lowest rank that threw.
void run_linked_ranks(int ranks, double bytes_per_second, const std::function<void(ddl::Communicator&)>& body);

}  // namespace spillway::tools
