/// One wire of a SocketEndpoint: messages between its members.
#pragma once
#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddl/comm/transport.h"
#include "ddl/sockets/socket_endpoint.h"

namespace spillway::ddl {

/// Before each message, on its connection.
struct MessageHeader {
  int64_t tag = 0;
  uint64_t size = 0;
};

/// The messages of one wire. A message is read straight into the buffer of its receive where there is one; one that is
/// in the way of another is kept aside. A connection is read only while a receive of its sender waits, so that a sender
/// cannot fill this process's memory.
class SocketWire final : public Transport {
 public:
  /// Makes the wire `key` between `members`, ranks of the world.
  SocketWire(std::shared_ptr<SocketEndpoint> endpoint, uint64_t key, std::vector<int> members);
  ~SocketWire() override = default;

  int rank() const override { return rank_; }
  const std::vector<int>& hosts() const override { return hosts_; }
  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override;
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override;
  bool test(Request& request) override;
  bool will_never_finish(const Request& request) override;
  void idle(std::chrono::steady_clock::time_point until) override;
  void abandon() noexcept override;
  std::unique_ptr<Transport> duplicate() override;
  std::unique_ptr<Transport> group(std::span<const int> members) override;
  bool ready() override;

 private:
  /// A request's state.
  struct Slot {
    bool done = false;
    std::string error;
    std::span<std::byte> bytes;  ///< the memory of a receive
  };
  /// A message that is being sent.
  struct Outgoing {
    int slot;
    MessageHeader header;
    std::span<const std::byte> bytes;
    size_t sent = 0;  ///< bytes of header and message that were sent
  };
  /// A receive that waits for a message of a tag.
  struct Posted {
    int64_t tag;
    int slot;
  };
  /// The connections with a rank, and the messages on them.
  struct Peer {
    Socket out, in;
    std::optional<Hello> hello;  ///< still to be sent, from `hello_sent`
    size_t hello_sent = 0;
    std::deque<Outgoing> sending;
    std::deque<Posted> posted;
    std::map<int64_t, std::deque<std::vector<std::byte>>> aside;  ///< messages without a receive, by tag
    // The message that is coming.
    MessageHeader header;
    size_t header_size = 0;
    int slot = -1;  ///< the slot of its receive; -1: it is kept aside
    std::vector<std::byte> kept;
    uint64_t come = 0;
    // Bytes that were read ahead.
    std::array<std::byte, 4096> ahead;
    size_t ahead_begin = 0, ahead_end = 0;
    bool closed = false;                                          ///< nothing more comes
    std::optional<std::chrono::steady_clock::time_point> missed;  ///< when its end was noticed before its connection
  };

  int take_slot();
  void finish(int slot, std::string error = {});
  void fail_sends(Peer& peer, const std::string& error);
  std::string end_of(const Peer& peer) const;

  void progress_sends();
  void progress_sends(Peer& peer);
  /// True when there is a connection. Where there will be none, the messages fail.
  bool connect(Peer& peer);
  bool send_hello(Peer& peer);
  /// True where the peer closed the connection before it was told what it is for. Nothing is lost then.
  static bool was_dropped(const Peer& peer);
  void require_own() const;
  void begin_ready_round(int before, int after);
  /// True when a message of the round has passed, or its rank has ended.
  bool ready_passed(Request& request, int peer);

  bool waits(const Peer& peer) const { return !peer.posted.empty() || !posted_any_.empty() || peer.slot >= 0; }
  void take_connections();
  /// Reads what has come from a peer while receives of it wait.
  void progress_receives(Peer& peer);
  /// Reads ahead; false where nothing has come.
  bool fill(Peer& peer);
  bool read_header(Peer& peer);
  bool read_body(Peer& peer);
  void begin_body(Peer& peer);
  /// True where a message has another size than its receive. It is read all the same, so that the connection stays of
  /// use to those who diagnose.
  bool drops_body(const Peer& peer) const;
  /// Returns memory for what comes next. That of a message which is kept aside grows with what has come, because the
  /// size that its sender told is a word only.
  std::span<std::byte> room_for_body(Peer& peer);
  void end_body(Peer& peer);
  /// Returns some bytes read; 0 where none have come or the connection is closed.
  size_t read(Peer& peer, std::span<std::byte> into);
  /// Takes the receive that a message of this tag is for; -1: none.
  int match(Peer& peer, int64_t tag);
  void deliver(int slot, std::span<const std::byte> bytes);
  void deliver_to_self(int64_t tag, std::span<const std::byte> bytes);
  /// Gives a message that was kept aside to a receive, and returns true.
  bool take_aside(Peer& peer, int64_t tag, int slot);
  void poll_descriptors(std::chrono::steady_clock::time_point until);

  const std::shared_ptr<SocketEndpoint> endpoint_;
  const uint64_t key_;
  const std::vector<int> members_;
  int rank_;
  std::vector<int> hosts_;
  std::vector<Peer> peers_;  ///< by rank of this wire
  std::deque<Posted> posted_any_;
  std::vector<Slot> slots_;
  std::vector<int> free_;
  std::vector<pollfd> polled_;
  int sending_ = 0;  ///< messages that are not sent whole
  int polls_ = 0;
  uint64_t children_ = 0;
  std::map<std::vector<int>, uint64_t> groups_;
  bool dead_ = false;
  int ready_distance_ = 1;
  bool is_ready_round_ = false;
  std::array<Request, 2> ready_requests_;
  int32_t lost_ = -1;               ///< a rank of the world that ended before the wire was made
  int32_t said_ = -1, heard_ = -1;  ///< that rank in this round's messages
};

}  // namespace spillway::ddl
