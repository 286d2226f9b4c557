/// The interface of a Communicator's backend: non-blocking bytes between ranks, and nothing else.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace spillway::ddl {

/// The purpose of a message. Messages between the same two ranks with the same tag arrive in the order they were sent.
enum class Tag : int {
  notice = 1,
  agreement,
  reduce,
  gather,
  broadcast,
  blob,
  channel  ///< the courier's channel 0; its other channels follow
};

/// The source of a receive that takes the first message from any rank.
inline constexpr int kAnyRank = -1;

/// One unfinished send or receive: a borrowed handle into its transport, empty once finished.
struct Request {
  int slot = -1;
  int peer = -1;
  bool active() const noexcept { return slot >= 0; }
};

/// One rank's end of the wire. Used by one thread at a time; duplicates are wires of their own. The Communicator is in
/// charge of deadlines, diagnosis and death. A transport only moves bytes, and throws std::runtime_error with the
/// library's own text when that fails. Both ends of a message name the same number of bytes; a difference is an error
/// of the receiver's `test`.
class Transport {
 public:
  /// Forgets unfinished requests too.
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  /// Returns the host that each rank runs on, counted from 0 in order of first appearance. There is one entry for each
  /// rank.
  virtual const std::vector<int>& hosts() const = 0;
  /// True where the other ranks are not there (simulated_world.h).
  virtual bool is_simulated() const { return false; }
  /// Starts sending; `bytes` must stay valid and unchanged until `test` says true or `abandon` returns. Never blocks.
  virtual Request send(int peer, Tag tag, std::span<const std::byte> bytes) = 0;
  /// Starts receiving, from `peer` or kAnyRank; `bytes` must stay valid until `test` says true or `abandon` returns.
  /// Never blocks.
  virtual Request receive(int peer, Tag tag, std::span<std::byte> bytes) = 0;
  /// True when `request` is finished; then empties it. An empty request is finished. Never blocks.
  virtual bool test(Request& request) = 0;
  /// True when `request` will never be finished, because its peer has ended and its message was not among those that
  /// the peer had sent. False for a request that `test` would finish. A transport that cannot know says false.
  /// Never blocks.
  virtual bool will_never_finish(const Request& /*request*/) { return false; }
  /// Gives the processor away between two polls; may return at any time, and does at `until`.
  virtual void idle(std::chrono::steady_clock::time_point until) = 0;
  /// Forgets all unfinished requests, because the communicator died. Their buffers may be freed afterwards. Nothing
  /// else is called later.
  virtual void abandon() noexcept = 0;
  /// Starts making a further wire between the same ranks, with messages of its own, which another thread may use. Every
  /// rank makes its duplicates in the same order. The wire may be used once it is `ready`. Never blocks. Throws
  /// std::runtime_error with the library's own text.
  virtual std::unique_ptr<Transport> duplicate() = 0;
  /// Makes a further wire between some of the ranks, which are numbered by their place in `members`, ascending. They
  /// call it with the same list, and all of them do when one of them does; so it blocks for microseconds at most.
  /// Throws std::runtime_error with the library's own text.
  virtual std::unique_ptr<Transport> group(std::span<const int> members) = 0;
  /// True when the wire is made, which may need the other ranks. Never blocks. Throws std::runtime_error with the
  /// library's own text.
  virtual bool ready() = 0;
};

/// Returns a rank's place in a group.
inline int place_of(int rank, std::span<const int> members) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}
/// Returns the hosts of a group's ranks.
inline std::vector<int> hosts_of(std::span<const int> members, const std::vector<int>& hosts) {
  std::vector<int> of_members;
  for (int member : members) of_members.push_back(hosts[member]);
  return of_members;
}

}  // namespace spillway::ddl
