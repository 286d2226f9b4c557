/// Messages of torch.distributed's send and recv.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl {

class Communicator;

/// Messages between two ranks that a thread moves, any number at once, in either direction. Messages between the same
/// two ranks with the same tag arrive in the order in which they were sent. Thread-safe.
class PointToPoint {
 public:
  /// Is called once, on the thread that moves messages, with the error of the message or without one.
  using Done = std::function<void(const std::exception_ptr&)>;

  /// `comm` is this object's alone.
  explicit PointToPoint(std::shared_ptr<Communicator> comm);
  /// Gives up when a message is under way.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Sends `bytes`, which must stay valid until `done` is called. `tag` is 0 or more.
  void send(int peer, int tag, std::span<const std::byte> bytes, Done done);
  /// Receives as many bytes, which must stay valid until `done` is called.
  void receive(int peer, int tag, std::span<std::byte> bytes, Done done);

 private:
  struct Message {
    bool outgoing;
    int peer;
    Tag tag;
    std::span<std::byte> bytes;  ///< only read where it is outgoing
    Done done;
    std::chrono::steady_clock::time_point start;
    Request request = {};
  };

  void add(Message message);
  void run();
  /// Starts what was added and completes what is finished. Returns false where nothing was.
  bool advance(std::vector<Message>& under_way);
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
