#include "ddl/sockets/socket_transport.h"

#include <numeric>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "ddl/sockets/meeting.h"
#include "ddl/sockets/socket_wire.h"

namespace spillway::ddl {

std::unique_ptr<Transport> socket_transport(int rank, int size, Rendezvous& rendezvous, const SocketOptions& options) {
  std::shared_ptr<SocketEndpoint> endpoint = meet(rank, size, rendezvous, options);
  std::vector<int> everyone(size);
  std::iota(everyone.begin(), everyone.end(), 0);
  return std::make_unique<SocketWire>(std::move(endpoint), kHashSeed, std::move(everyone));
}

}  // namespace spillway::ddl
