/// Messages between ranks that travel while both compute.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace spillway::ddl {

class Communicator;

/// One end of the messages from one rank to another.
struct Channel {
  std::string name;   ///< for errors: `activations from stage 0 to stage 1`
  int number = 0;     ///< equal at both ends, and no other channel's between these ranks: 0 to kMaxChannels − 1
  int peer = 0;       ///< the rank at the other end
  bool sends = true;  ///< false: this end receives
  int64_t bytes = 0;  ///< size of each message, the same at both ends
  int slots = 1;      ///< messages that this end keeps, at least 1
};

/// The most channels that there can be between two ranks.
inline constexpr int kMaxChannels = 16'384;

/// The step and micro-batch that a message belongs to. The stamp travels with the data.
struct Stamp {
  int64_t step = 0;
  int64_t micro_batch = 0;
  double seconds = 0;  ///< time on the sender's clock
};

/// The messages of a channel since the courier was made.
struct ChannelTotals {
  int64_t messages = 0;
  std::chrono::nanoseconds waited{};  ///< time for which send() or receive() blocked
};

/// A carrier of messages that its caller writes and reads in fixed memory. A thread and a communicator of its own send
/// and receive them, so messages travel while the caller computes. Every receive is started before its message is
/// asked for, as far as slots are free. Messages of a channel arrive in their order. Channels do not wait for each
/// other.
///
/// A message is kept in a slot of its sender until the receiver has one for it. So a sender blocks while `slots`
/// messages at its end and `slots` at the other end have not been read. Ranks that send in an order that needs more
/// than that wait for each other until the deadline. The deadline counts only while a caller blocks.
///
/// Used by one thread at a time.
class Courier {
 public:
  /// Returns the bytes of memory that these ends need.
  static int64_t memory_bytes(std::span<const Channel> channels);

  /// Starts the thread. `comm` is this object's alone, from Communicator::duplicate() or group(). `memory` has
  /// memory_bytes(), and outlives the courier. Throws BadRequest naming the channel whose fields are out of range or
  /// whose number is taken.
  Courier(std::shared_ptr<Communicator> comm, std::vector<Channel> channels, std::span<std::byte> memory);
  /// Waits until what was sent has left. Gives up instead while an exception unwinds the stack.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  const std::vector<Channel>& channels() const;

  /// Sends the message that `write` writes to the given memory. Blocks while all slots are full. Throws CommError, and
  /// what `write` throws, when nothing is sent.
  void send(size_t channel, const Stamp& stamp, const std::function<void(std::span<std::byte>)>& write);
  /// Blocks until the next message has come, lets `read` read it, and returns its stamp. Throws CommError on both ends
  /// when it is of another step or micro-batch than `due`.
  Stamp receive(size_t channel, const Stamp& due, const std::function<void(std::span<const std::byte>)>& read);

  ChannelTotals totals(size_t channel) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::ddl
