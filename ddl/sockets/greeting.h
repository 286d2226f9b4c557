/// The words of ranks before messages flow: their addresses, and the purposes of connections.
#pragma once
#include <cstdint>
#include <string>

#include "ddl/sockets/hmac.h"

namespace spillway::ddl {

/// The number of the protocol of addresses, hellos and messages. Ranks of another one are refused by name.
inline constexpr int32_t kProtocol = 2;

/// The addresses of one rank, which it publishes as a text.
struct RankAddress {
  std::string host;       ///< ranks of one name try each other's Unix sockets
  uint64_t token = 0;     ///< proves to its owner that a connection is of somebody who has read this text
  uint64_t life = 0;      ///< another one in every publication
  std::string address;    ///< an IPv4 or IPv6 address
  std::string port;       ///< the port there
  std::string unix_name;  ///< the name of an abstract Unix socket
  bool operator==(const RankAddress&) const = default;
};

/// Returns the text that rank `rank` publishes, signed where there is a secret.
std::string format_address(int rank, const RankAddress& address, const std::string& secret);
/// Reads the text that rank `rank` published. Throws std::runtime_error when it is none, is of another protocol, or was
/// not signed with this secret.
RankAddress parse_address(int rank, const std::string& text, const std::string& secret);

/// The first bytes of a connection, which say what it is for.
struct Hello {
  static constexpr uint64_t kMagic = 0x7370696c6c776179;  // "spillway"
  uint64_t magic = kMagic;
  int32_t version = kProtocol;
  int32_t rank = -1;   ///< the sender's in the world
  uint64_t token = 0;  ///< the receiver's
  uint64_t life = 0;   ///< the sender's
  uint64_t wire = 0;
  Digest proof{};  ///< proves that the sender knows the secret; zeros without one

  /// Adds the proof. The receiver's token is what makes it another one for every receiver.
  void sign(const std::string& secret);
  /// True for a hello of another rank to the one that has this token, with the right proof.
  bool is_for(int own_rank, int ranks, uint64_t own_token, const std::string& secret) const;
};

/// The answer to the hello of a connection that tells whether its rank lives.
enum class Answer : uint8_t { welcome = 1, taken, stranger };

}  // namespace spillway::ddl
