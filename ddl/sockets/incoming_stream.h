/// The messages of a wire from one rank.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ddl/sockets/socket.h"
#include "ddl/sockets/wire_messages.h"

namespace spillway::ddl {

/// A connection from which bytes are read, some of them ahead.
class SocketReader {
 public:
  /// Takes the connection. A rank makes one only: a further one is closed.
  void open(Socket socket);
  /// Closes the connection: nothing more comes.
  void end() noexcept;
  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  /// True when nothing more comes.
  bool has_ended() const noexcept { return has_ended_; }
  int fd() const noexcept { return socket_.fd(); }
  /// Closes the connection without saying that nothing more comes.
  void close() noexcept { socket_.close(); }

  /// Returns some bytes read; 0 where none have come or the connection has ended.
  size_t read(std::span<std::byte> into);
  /// Reads ahead where nothing is there. Returns false where nothing has come.
  bool fill();
  /// Returns the bytes that were read ahead.
  std::span<const std::byte> ahead() const { return std::span(ahead_).subspan(begin_, end_ - begin_); }
  /// Drops the first of them.
  void consume(size_t count) noexcept { begin_ += count; }

 private:
  Socket socket_;
  bool has_ended_ = false;
  std::array<std::byte, 4096> ahead_;
  size_t begin_ = 0, end_ = 0;
};

/// A connection from a rank, and the messages that come on it. A message is read straight into the memory of its
/// receive where there is one; one that is in the way of another is kept aside.
class IncomingStream {
 public:
  /// Receives from `rank` of the world. Its messages are for receives of any rank too. Both references outlive the
  /// stream.
  IncomingStream(WireRequests& requests, PostedReceives& posted_for_any, int rank)
      : requests_(requests), posted_for_any_(posted_for_any), rank_(rank) {}

  void open(Socket socket) { reader_.open(std::move(socket)); }
  bool is_open() const noexcept { return reader_.is_open(); }
  bool has_ended() const noexcept { return reader_.has_ended(); }
  int fd() const noexcept { return reader_.fd(); }
  /// Notes that the rank has ended and no connection has come. After a while none is expected any more.
  void miss_connection();
  /// Closes the connection and forgets the receives.
  void abandon() noexcept;

  /// Posts a receive of this rank.
  void post(int64_t tag, int slot) { posted_.add(tag, slot); }
  bool has_posted() const noexcept { return !posted_.empty(); }
  /// Gives a message that was kept aside to a receive, and returns true.
  bool take_aside(int64_t tag, int slot);
  /// Takes a message that needs no connection, because this rank itself sends it.
  void deliver(int64_t tag, std::span<const std::byte> bytes);
  /// True while a receive waits for a message, which may be under way.
  bool is_awaited() const noexcept {
    return has_posted() || !posted_for_any_.empty() || slot_ != PostedReceives::kNone;
  }
  /// Reads what has come while receives wait. A connection is read only then, so that a sender cannot fill this
  /// process's memory. Throws std::runtime_error for a header that is nonsense.
  void progress();

 private:
  bool read_header();
  void begin_body();
  bool read_body();
  void end_body();
  /// Gives a message that was kept aside to the receive that was posted while it came, which is due before that of the
  /// next message. Without one it stays aside.
  void end_kept();
  /// True where a message has another size than its receive. It is read all the same, so that the connection stays of
  /// use to those who diagnose.
  bool drops_body() const;
  /// Returns memory for what comes next. That of a message which is kept aside grows with what has come, because the
  /// size that its sender told is a word only.
  std::span<std::byte> room_for_body();
  /// Takes the receive that a message of this tag is for.
  int match(int64_t tag);

  WireRequests& requests_;
  PostedReceives& posted_for_any_;
  const int rank_;
  SocketReader reader_;
  PostedReceives posted_;
  std::map<int64_t, std::deque<std::vector<std::byte>>> aside_;  ///< messages without a receive, by tag
  std::optional<std::chrono::steady_clock::time_point> missed_;  ///< when its end was noticed before its connection
  // The message that is coming.
  MessageHeader header_;
  size_t header_bytes_ = 0;           ///< the header's bytes that have come
  uint64_t body_bytes_ = 0;           ///< the message's bytes that have come
  int slot_ = PostedReceives::kNone;  ///< its receive; kNone: it is kept aside
  std::vector<std::byte> kept_;
};

}  // namespace spillway::ddl
