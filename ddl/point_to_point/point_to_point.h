/// Messages between two ranks that go on while their callers do something else.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl {

class Communicator;

/// The time since which somebody waits for a message. A message's deadline counts from then on, because one that is
/// posted early, such as a signal to stop, may come at any time. Thread-safe.
class WaitingSince {
 public:
  /// Starts the deadline, at the first call.
  void begin() noexcept;
  /// Returns the time of the first begin(); nothing before it.
  std::optional<std::chrono::steady_clock::time_point> time() const noexcept;

 private:
  std::atomic<std::chrono::steady_clock::rep> since_ = 0;
};

/// Messages between two ranks that a thread moves, any number at once, in either direction. Messages between the same
/// two ranks with the same tag arrive in the order in which they were sent. Neither call blocks. Thread-safe.
class PointToPoint {
 public:
  /// The largest tag of a message; the smallest is 0.
  static constexpr int kMaxTag = 0x3fffffff;
  /// Is called once, on the thread that moves messages, with the error of the message or without one. It must not
  /// throw.
  using Done = std::function<void(const std::exception_ptr&)>;

  /// `comm` is this object's alone.
  explicit PointToPoint(std::shared_ptr<Communicator> comm);
  /// Gives up when a message is under way.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Sends `bytes`, which must stay valid until `done` is called. `waiting` is the caller's, who begins it when it
  /// waits. A rank that ends, or that gives up, ends the message with a CommError at any time. Throws BadRequest for a
  /// tag out of range.
  void send(int peer, int tag, std::span<const std::byte> bytes, std::shared_ptr<WaitingSince> waiting, Done done);
  /// Receives as many bytes, which must stay valid until `done` is called. Otherwise like send().
  void receive(int peer, int tag, std::span<std::byte> bytes, std::shared_ptr<WaitingSince> waiting, Done done);
  /// Changes the longest wait for a message, as Communicator::set_deadline() does.
  void set_deadline(std::chrono::milliseconds deadline);

 private:
  struct Message {
    bool outgoing;
    int peer;
    Tag tag;
    std::span<std::byte> bytes;  ///< only read where it is outgoing
    std::shared_ptr<WaitingSince> waiting;
    Done done;
    bool started = false;
    Request request = {};
  };

  void add(Message message);
  void run();
  /// Starts what was added and completes what is finished. Returns false where nothing was.
  bool advance(std::vector<Message>& under_way);
  /// Throws CommError where a message can no longer come, or has been waited for beyond the deadline.
  void check(const std::vector<Message>& under_way);
  /// Blocks until a message was added or the end has come. Returns false where none was.
  bool wait_for_messages();
  bool is_ending();

  const std::shared_ptr<Communicator> comm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> added_;
  bool ending_ = false;
  std::thread thread_;  ///< last member, because it uses the others
};

}  // namespace spillway::ddl
