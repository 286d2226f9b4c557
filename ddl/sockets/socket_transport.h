/// Ranks as processes that talk over sockets. Needs no launcher but a place where they tell each other their addresses.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// A place where ranks publish texts before they have a wire, such as a store of torch.distributed.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes a text. A key is set once.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Blocks until some rank has set `key`. Throws std::runtime_error when none does in the time of the place's own.
  virtual std::string get(const std::string& key) = 0;
};

struct SocketOptions {
  /// The IPv4 or IPv6 address of this host that ranks of other hosts reach. Ranks of one host do not use it.
  std::string address = "127.0.0.1";
  std::chrono::milliseconds deadline{60'000};  ///< the longest time until all ranks have come
  /// The name of this host, without blanks. Ranks of one name reach each other's Unix-domain sockets. Empty: ranks in
  /// one network namespace share a host.
  std::string host = {};
};

/// Makes the wire between `size` ranks. Ranks of one host talk through Unix-domain sockets; others by TCP. A connection
/// serves one direction of one wire, and is made by the first message; besides, every two ranks of the world hold one,
/// whose end tells that a rank has ended. Collective, through `rendezvous`, whose keys begin with "spillway/". Throws
/// std::runtime_error when not all ranks come within the deadline or the system has no sockets left.
std::unique_ptr<Transport> socket_transport(int rank, int size, Rendezvous& rendezvous,
                                            const SocketOptions& options = {});

}  // namespace spillway::ddl
