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

#include "ddl/sockets/greeting.h"
#include "ddl/sockets/rendezvous.h"
#include "ddl/sockets/socket.h"

namespace spillway::ddl {

/// One process's listeners and its peers' addresses. Thread-safe.
class SocketEndpoint {
 public:
  /// The wire of the connections whose end tells that a rank has ended.
  static constexpr uint64_t kLifeWire = 0;

  /// Listens for the other ranks of `size`. They are met by a Meeting. Throws std::runtime_error.
  SocketEndpoint(int rank, int size, const SocketOptions& options);
  ~SocketEndpoint();
  SocketEndpoint(const SocketEndpoint&) = delete;
  SocketEndpoint& operator=(const SocketEndpoint&) = delete;

  int rank() const noexcept { return rank_; }
  const std::vector<int>& hosts() const noexcept { return hosts_; }

  /// Starts a connection to a rank and returns it with the hello that must be its first bytes. An empty socket: the
  /// peer cannot take one now; try again. Throws std::runtime_error.
  std::pair<Socket, Hello> connect(int peer, uint64_t wire) const;
  /// Returns the connections that have come for a wire since the last call, with their senders.
  std::vector<std::pair<int, Socket>> take(uint64_t wire);
  /// Accepts connections and looks who has ended. Never blocks. Throws std::runtime_error where this process has no
  /// descriptor for a connection, from then on always.
  void progress();
  /// True where a rank's process has ended, or has closed its endpoint. What it sent before may still be read.
  bool gone(int peer);
  /// True in a child of fork(), where all sockets are closed.
  bool inherited() const noexcept { return epoll_.inherited(); }
  /// Returns a descriptor that is readable when progress() has something to do.
  int events() const noexcept { return epoll_.fd(); }

 private:
  friend class Meeting;
  struct Peer {
    RankAddress address;
    bool by_tcp = false;       ///< how this rank connects to it
    Socket life;               ///< to it
    Socket life_here;          ///< from it
    bool has_come = false;     ///< from then on no other connection tells of its life
    bool came_by_tcp = false;  ///< how it connects to this rank
    uint64_t life_number = 0;  ///< RankAddress::life of who has come
    /// A word on `life_here`: the rank itself when it has met all others, or the rank for which it gives up.
    std::array<std::byte, sizeof(int32_t)> word{};
    size_t word_size = 0;
    bool has_met_all = false;
    int blames = -1;
    bool gone = false;
  };
  struct Greeting {
    Socket socket;
    bool by_tcp = false;
    std::array<std::byte, sizeof(Hello)> bytes{};
    size_t size = 0;
    std::chrono::steady_clock::time_point start;
  };

  bool is_local(int peer) const { return peers_[peer].address.host == peers_[rank_].address.host; }
  void watch(int fd);
  void unwatch(int fd);
  void accept_all(const Socket& listener);
  void add_greeting(Socket socket, bool by_tcp);
  /// Makes room for one more greeting. Returns false where those that there are need time.
  bool make_room();
  /// Makes room for a connection where descriptors are used up. Returns false where there is none.
  bool free_a_descriptor();
  void refill_spare();
  /// Reads a hello's bytes; true when the greeting is over, for good or ill.
  bool greet(Greeting& greeting);
  void welcome(Greeting& greeting, const Hello& hello);
  void welcome_life(Greeting& greeting, const Hello& hello);
  /// Ends a greeting.
  void forget(int fd);
  /// Ends the oldest greeting. Returns false where it is younger than `least`, or where there is none.
  bool forget_the_oldest(std::chrono::milliseconds least);
  void forget_the_slow();
  void look_at(int fd);
  /// Reads a rank's word, and notices its end.
  void hear(Peer& peer);

  const int rank_;
  const std::string secret_;
  std::mutex mutex_;
  Socket epoll_, tcp_, unix_;
  Socket spare_;  ///< a descriptor to be given up for a connection that must be taken
  std::vector<Peer> peers_;
  std::vector<int> hosts_;
  std::map<int, Greeting> greetings_;                                ///< by descriptor
  std::map<uint64_t, std::vector<std::pair<int, Socket>>> arrived_;  ///< by wire
  std::string failure_;                                              ///< why no connection can be taken any more
};

}  // namespace spillway::ddl
