/// Collectives that go on while their caller does something else.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "core/timeline.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Jobs made of collectives, one after another in the order of submission, on a thread and a communicator of their own.
/// Each queue is a communicator: jobs of several queues, and collectives elsewhere, need no common order. Used by one
/// thread at a time.
class BackgroundQueue {
 public:
  using Job = std::function<void(Communicator&)>;

  /// `comm` is this object's alone (Communicator::duplicate(), which every rank calls for its queues in the same
  /// order). `name`: the thread's.
  BackgroundQueue(std::shared_ptr<Communicator> comm, std::string name);
  /// Gives up where something is under way or waits.
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  /// Runs `job` when those before it and `after` are done; every rank submits the same jobs in the same order. What a
  /// job works on must stay valid, and is nobody else's, until the ticket is done; it may be what the jobs before work
  /// on. Does not block. What it throws ends it and all later ones, here and on every other rank, with a CommError in
  /// their tickets.
  [[nodiscard]] Ticket submit(Job job, Ticket after = {});
  /// Ends what is under way and all that follows, here and on every other rank, with a CommError: for a caller that
  /// cannot submit the jobs which the others will. `reason`: what they are told, unless there was another before.
  void give_up(const std::string& reason);
  /// Within jobs that are done, once no ticket is open: from the start of each, or from its submission where none was
  /// under way, to its end; waiting for later ranks included.
  std::chrono::nanoseconds busy() const noexcept { return busy_; }

 private:
  void run(const Job& job, const Ticket& after);

  const std::shared_ptr<Communicator> comm_;
  std::chrono::nanoseconds busy_{};            ///< the worker's, like the next
  std::chrono::steady_clock::time_point end_;  ///< of the last one
  Ticket last_;
  WorkerTimeline worker_;  ///< last: it ends before what it works on
};

}  // namespace spillway::ddl
