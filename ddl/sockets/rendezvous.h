/// The place where ranks find each other before they have a wire, and how they do it.
#pragma once
#include <chrono>
#include <optional>
#include <string>

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

}  // namespace spillway::ddl
