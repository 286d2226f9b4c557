/// The messages of a wire to one rank.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>

#include "ddl/sockets/socket_endpoint.h"
#include "ddl/sockets/wire_messages.h"

namespace spillway::ddl {

/// A connection to a rank, which the first message makes, and the messages that wait for it.
class OutgoingStream {
 public:
  /// Sends to `rank` of the world on the wire `wire`. Finishes requests of `requests`. Both outlive the stream.
  OutgoingStream(const SocketEndpoint& endpoint, WireRequests& requests, uint64_t wire, int rank)
      : endpoint_(endpoint), requests_(requests), wire_(wire), rank_(rank) {}

  /// Adds a message. `bytes` must stay valid until its request is finished.
  void add(int slot, int64_t tag, std::span<const std::byte> bytes) {
    messages_.push_back({slot, {tag, bytes.size()}, bytes});
  }
  /// Returns the number of messages that are not sent whole.
  size_t unsent() const noexcept { return messages_.size(); }
  /// Returns the connection's descriptor, or -1 where there is none.
  int fd() const noexcept { return socket_.fd(); }
  /// Sends as much as the connection takes. Where there is none and will be none, the messages fail.
  void progress();
  /// Closes the connection and forgets the messages.
  void abandon() noexcept;

 private:
  struct Message {
    int slot;
    MessageHeader header;
    std::span<const std::byte> bytes;
    size_t sent = 0;  ///< bytes of header and message that were sent
  };

  /// True when there is a connection.
  bool connect();
  bool send_hello();
  /// True where the peer closed the connection before it was told what it is for. Nothing is lost then.
  bool was_dropped() const;
  void fail(const std::string& error);

  const SocketEndpoint& endpoint_;
  WireRequests& requests_;
  const uint64_t wire_;
  const int rank_;
  Socket socket_;
  std::optional<Hello> hello_;  ///< still to be sent, from `hello_sent_`
  size_t hello_sent_ = 0;
  std::deque<Message> messages_;
};

}  // namespace spillway::ddl
