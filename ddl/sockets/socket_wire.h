/// One wire of a SocketEndpoint: messages between its members.
#pragma once
#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/host/vain_polls.h"
#include "ddl/comm/transport.h"
#include "ddl/sockets/incoming_stream.h"
#include "ddl/sockets/outgoing_stream.h"
#include "ddl/sockets/socket_endpoint.h"
#include "ddl/sockets/wire_messages.h"

namespace spillway::ddl {

/// The messages of one wire: a stream in each direction with every member, and the requests that wait for them.
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
  /// The rounds of messages by which members tell that they have made the wire.
  struct ReadyRounds {
    int distance = 1;
    bool is_under_way = false;
    std::array<Request, 2> requests;  ///< the receive and the send of the round that is under way
    int32_t lost = -1;                ///< a rank of the world that ended before the wire was made
    int32_t said = -1, heard = -1;    ///< that rank in this round's messages
  };

  void require_own() const;
  /// Throws where no request can be made, or finished, any more.
  void require_life() const;
  /// Reads what has come where it may finish the request.
  void progress_receives(const Request& request);
  void progress_sends();
  void progress_sends(OutgoingStream& stream);
  void take_connections();
  void poll_descriptors(std::chrono::steady_clock::time_point until);
  void begin_ready_round(int before, int after);
  /// True when a message of the round has passed, or its rank has ended.
  bool ready_passed(Request& request, int peer);

  const std::shared_ptr<SocketEndpoint> endpoint_;
  const uint64_t key_;
  const std::vector<int> members_;
  const int rank_;
  const std::vector<int> hosts_;
  WireRequests requests_;
  PostedReceives posted_for_any_;
  std::vector<OutgoingStream> outgoing_;  ///< by rank of this wire
  std::vector<IncomingStream> incoming_;  ///< by rank of this wire
  size_t unsent_ = 0;                     ///< messages that are not sent whole
  std::vector<pollfd> polled_;
  /// The polls of a wait after which a rank sleeps until something comes. They are few, because ranks may be more than
  /// cores, and those that spin then hold up those that work.
  static constexpr int kPollsBeforeSleep = 20;
  VainPolls polls_{kPollsBeforeSleep};
  uint64_t children_ = 0;
  std::map<std::vector<int>, uint64_t> groups_;
  bool dead_ = false;
  ReadyRounds ready_;
};

}  // namespace spillway::ddl
