/// A process's end of all socket wires: where connections arrive, and who is still there.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ddl/sockets/socket_transport.h"

namespace spillway::ddl {

/// A file descriptor that is closed with its owner. A socket's peer sees the end even where a child of fork() still
/// holds the descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  int fd() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

/// The first bytes of a connection, which say what it is for.
struct Hello {
  static constexpr uint64_t kMagic = 0x7370696c6c776179;  // "spillway"
  uint64_t magic = kMagic;
  uint64_t token = 0;  ///< the receiver's, which strangers do not know
  uint64_t wire = 0;
  int32_t rank = -1;  ///< the sender's in the world
  int32_t version = 1;
};

/// One process's listeners and its peers' addresses. Thread-safe.
class SocketEndpoint {
 public:
  /// Publishes this rank's addresses, reads the others', and connects to all. Blocks until every rank has connected
  /// here. Throws std::runtime_error as socket_transport() does.
  SocketEndpoint(int rank, int size, Rendezvous& rendezvous, const SocketOptions& options);
  ~SocketEndpoint();
  SocketEndpoint(const SocketEndpoint&) = delete;
  SocketEndpoint& operator=(const SocketEndpoint&) = delete;

  int rank() const noexcept { return rank_; }
  const std::vector<int>& hosts() const noexcept { return hosts_; }

  /// Starts a connection to a rank and returns it with the hello that must be its first bytes. An empty socket: the
  /// peer cannot take one now; try again. Throws std::runtime_error.
  std::pair<Socket, Hello> connect(int peer, uint64_t wire);
  /// Returns the connections that have come for a wire since the last call, with their senders.
  std::vector<std::pair<int, Socket>> take(uint64_t wire);
  /// Accepts connections and looks who has ended. Never blocks.
  void progress();
  /// True where a rank's process has ended, or has closed its endpoint. What it sent before may still be read.
  bool gone(int peer);
  /// Returns a descriptor that is readable when progress() has something to do.
  int events() const noexcept { return epoll_.fd(); }

 private:
  struct Peer {
    uint64_t token = 0;
    std::string host, address, port, unix_name;
    Socket life;       ///< to it
    Socket life_here;  ///< from it
    bool gone = false;
  };
  struct Greeting {
    Socket socket;
    std::array<std::byte, sizeof(Hello)> bytes{};
    size_t size = 0;
    std::chrono::steady_clock::time_point start;
  };

  void listen(const SocketOptions& options);
  void publish(Rendezvous& rendezvous, const SocketOptions& options);
  void read_peers(Rendezvous& rendezvous);
  void connect_to_all(std::chrono::milliseconds deadline);
  void watch(int fd);
  void unwatch(int fd);
  void accept_all(int listener);
  /// Reads a hello's bytes; true when the greeting is over, for good or ill.
  bool greet(Greeting& greeting);
  void welcome(Socket socket, const Hello& hello);
  /// Ends a greeting.
  void forget(int fd);
  void look_at(int fd);
  bool all_here();

  const int rank_;
  const uint64_t token_;
  std::mutex mutex_;
  Socket epoll_, tcp_, unix_;
  std::vector<Peer> peers_;
  std::vector<int> hosts_;
  std::map<int, Greeting> greetings_;                                ///< by descriptor
  std::map<uint64_t, std::vector<std::pair<int, Socket>>> arrived_;  ///< by wire
};

}  // namespace spillway::ddl
