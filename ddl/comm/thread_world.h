/// Ranks as threads of one process.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// A world whose ranks are threads: real concurrency and real messages without a launcher. Meant for tests and
/// examples. It outlives the communicators that it hands out. Thread-safe.
class ThreadWorld {
 public:
  /// Makes as many ranks as `hosts` has entries, at least 1. `hosts[r]` is the host that rank r pretends to run on
  /// (`4+2`: 0 0 0 0 1 1).
  explicit ThreadWorld(std::vector<int> hosts);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const noexcept;
  /// Returns the wire's end of `rank`, to be wrapped or given to a Communicator. Called once per rank.
  std::unique_ptr<Transport> transport(int rank);
  /// Makes the communicator of `rank`, for the one thread that plays it. Called once per rank.
  std::shared_ptr<Communicator> communicator(int rank, CommOptions options = {});

  class Wire;

 private:
  std::shared_ptr<Wire> wire_;
};

/// Runs `body` once per rank, each on its own thread, and returns when all have ended. Throws the error of the lowest
/// rank that threw.
void run_ranks(ThreadWorld& world, const std::function<void(Communicator&)>& body, const CommOptions& options = {});

}  // namespace spillway::ddl
