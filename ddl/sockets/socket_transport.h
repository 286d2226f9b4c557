/// Ranks as processes that talk over sockets. Needs no launcher but a place where they tell each other their addresses.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// A place where ranks publish texts before they have a wire, such as a store of torch.distributed.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes a text in place of the key's last one.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns the text that a key was last set to, also long ago by a group or a process that has ended. None: it was
  /// never set. Does not wait.
  virtual std::optional<std::string> find(const std::string& key) = 0;
};

struct SocketOptions {
  /// The IPv4 or IPv6 address of this host that ranks of other hosts reach. Ranks of one host do not use it.
  std::string address = "127.0.0.1";
  std::chrono::milliseconds deadline{60'000};  ///< the longest time until all ranks have come
  /// The name of this host, without blanks. Ranks of one name try each other's Unix-domain sockets first. Empty: ranks
  /// in one network namespace share a host.
  std::string host = {};
  /// A text that all ranks know, and strangers do not. Addresses are signed with it, and so are connections by TCP.
  /// Empty: whoever reads the rendezvous may connect by TCP.
  std::string secret = {};
};

/// Makes the wire between `size` ranks. Ranks of one host talk through Unix-domain sockets, which only processes of
/// their user may use; others by TCP. A connection serves one direction of one wire, and is made by the first message;
/// besides, every two ranks of the world hold one, whose end tells that a rank has ended. Collective, through
/// `rendezvous`, whose keys begin with "spillway/". Groups may be made on one rendezvous one after another, also where
/// ranks of former ones have ended without a word. Throws CommError when a rank ends meanwhile or does not come
/// within the deadline, naming it. Throws std::runtime_error when the system has no sockets left.
std::unique_ptr<Transport> socket_transport(int rank, int size, Rendezvous& rendezvous,
                                            const SocketOptions& options = {});

}  // namespace spillway::ddl
