/// Collectives that go on while their caller does something else.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/timeline.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// A queue of jobs made of collectives, which run one after another in the order of submission. They run on a thread
/// and a communicator of their own. Because each queue is a communicator, jobs of several queues, and collectives
/// elsewhere, need no common order. Thread-safe, apart from observe() and busy().
class BackgroundQueue {
 public:
  /// A job: it gets the queue's own communicator.
  using Job = std::function<void(Communicator&)>;
  /// A function that is told of each job that ended: the start and end that busy() counts, and the job's bytes. It is
  /// called on the queue's thread, in the order of the jobs, before the job's ticket is done.
  using Observer = WorkerTimeline::Observer;

  /// Starts a thread named `name`. `comm` is this object's alone. It comes from Communicator::duplicate(), which every
  /// rank calls for its queues in the same order.
  BackgroundQueue(std::shared_ptr<Communicator> comm, std::string name);
  /// Gives up when a job is under way or waits.
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  /// Runs `job` when the jobs before it and `after` are done. Every rank submits the same jobs in the same order. The
  /// memory that a job works on must stay valid until the ticket is done, and only earlier jobs may use it too. Does
  /// not block. An error that a job throws ends it and all later jobs, here and on every other rank, with a CommError
  /// in their tickets. `bytes` is the number that the observer is told.
  [[nodiscard]] Ticket submit(Job job, Ticket after = {}, int64_t bytes = 0);
  /// Tells `observer` of all later jobs. Call it only while no ticket is open.
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// Ends the job under way and all that follow, here and on every other rank, with a CommError. Meant for a caller
  /// that cannot submit the jobs which the other ranks will submit. `reason` is the text that the other ranks are told,
  /// unless there was an earlier reason.
  void give_up(const std::string& reason);
  /// Returns the time spent in jobs that are done; valid only when no ticket is open. Each job counts from its start,
  /// or from its submission when no job was under way, to its end. Waiting for later ranks is included.
  std::chrono::nanoseconds busy() const noexcept { return busy_; }

 private:
  void run(const Job& job, const Ticket& after);

  const std::shared_ptr<Communicator> comm_;
  std::chrono::nanoseconds busy_{};            ///< written by the worker thread
  std::chrono::steady_clock::time_point end_;  ///< end of the last job; written by the worker thread
  Observer observer_;
  std::mutex mutex_;
  Ticket last_;            ///< the last job's; guarded by mutex_
  WorkerTimeline worker_;  ///< last member, because it must end before the members that it uses
};

}  // namespace spillway::ddl
