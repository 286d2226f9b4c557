/// Asynchronous device work that runs in order, and tickets for its completion.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace spillway {

/// Work in a device's queue, which the device runs without the host: a copy on a CUDA stream. Thread-safe.
class QueuedWork {
 public:
  virtual ~QueuedWork() = default;
  /// Returns true when the work is done. Throws the work's error when it failed.
  virtual bool done() = 0;
  /// Blocks the host until the work is done. Throws the work's error when it failed.
  virtual void wait() = 0;
  /// Makes work that is submitted to the device's compute queue after this call run after this work. Does not block the
  /// host.
  virtual void order_compute_after() = 0;
};

/// The completion of one piece of asynchronous work. Copies of a ticket share it. An empty ticket is complete.
class Ticket {
 public:
  Ticket() = default;
  /// Makes a ticket for the completion of work in a device's queue.
  explicit Ticket(std::shared_ptr<QueuedWork> work);
  bool done() const;
  /// Returns true when the work is complete without an error.
  bool succeeded() const;
  /// Blocks until the work is complete. Throws the work's error in every call.
  void wait() const;

  /// Orders compute after the work: operators that the caller submits after this call see its outcome. Where compute
  /// runs on the host, this call is wait(). Where compute runs in a device's queue, it returns at once; host code must
  /// still wait() before it reads the bytes itself. Throws the error of work that has failed by now.
  void order_compute_after() const;
  /// True when order_compute_after() would return at once.
  bool can_order_without_wait() const;

 private:
  friend class TicketSource;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
    std::shared_ptr<State> rest;       // the work that follows, once this part is done
    std::shared_ptr<QueuedWork> work;  // the device's work for it; polling finds its end
  };
  template <class Look>
  bool follow(Look&& look) const;
  std::shared_ptr<State> state_;
};

/// The object that completes a Ticket, once.
class TicketSource {
 public:
  TicketSource();
  Ticket ticket() const;
  void complete(std::exception_ptr error = nullptr);
  /// Completes this part of the work, which goes on as `rest`. Tickets are complete when `rest` is, with its error.
  void chain_to(Ticket rest);

 private:
  std::shared_ptr<Ticket::State> state_;
};

/// The bytes that a lane has copied so far, and the seconds that it took.
struct CopyTotals {
  int64_t bytes = 0;
  double seconds = 0;
  double stalled_seconds = 0;  ///< seconds that the device's compute queue waited for copies which it was ordered after
};

struct StridedRuns;

/// The memory that a copy reads or writes.
enum class Side : uint8_t { host, device };

/// A lane of work that runs in the order of submission, in parallel with the caller: a worker thread on the CPU, a
/// stream on CUDA. Two timelines are ordered only by tickets that the caller waits for, or orders compute after. A
/// device's lane starts each copy after all work that its compute queue was given before. So a copy sees the bytes that
/// operators wrote, and does not touch memory that operators still use. Thread-safe.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Copies `bytes` from `source` to `destination` after everything submitted before. Both must stay valid until the
  /// ticket is done. Does not block the caller. An error travels in the ticket; later work still runs.
  [[nodiscard]] virtual Ticket copy(void* destination, const void* source, int64_t bytes) = 0;
  /// Copies runs of bytes in one piece of work, as copy() copies one run. Runs of the destination must not overlap.
  [[nodiscard]] virtual Ticket copy_runs(void* destination, const void* source, const StridedRuns& runs) = 0;
  /// Moves managed memory (Block::is_managed) in the order of the lane's copies. The memory's address stays the same.
  [[nodiscard]] virtual Ticket move(void* data, int64_t bytes, Side to);
  /// Returns the totals of the copies that are done; zeros when the lane does not measure. Thread-safe.
  virtual CopyTotals totals() const { return {}; }
};

/// A Timeline that one worker thread serves. Destruction finishes the submitted work.
class WorkerTimeline final : public Timeline {
 public:
  /// A function that is called on the worker after each copy with its start, end and bytes. The trace and the measured
  /// rate use it.
  using Observer =
      std::function<void(std::chrono::steady_clock::time_point, std::chrono::steady_clock::time_point, int64_t bytes)>;
  explicit WorkerTimeline(std::string name, Observer observer = nullptr);
  ~WorkerTimeline() override;
  [[nodiscard]] Ticket copy(void* destination, const void* source, int64_t bytes) override;
  [[nodiscard]] Ticket copy_runs(void* destination, const void* source, const StridedRuns& runs) override;
  CopyTotals totals() const override;
  /// Runs any work on the lane. The ticket carries the exception that the work throws.
  [[nodiscard]] Ticket submit(std::function<void()> work);

 private:
  void run();

  const std::string name_;
  const Observer observer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, TicketSource>> queue_;
  bool stopping_ = false;
  CopyTotals totals_;
  std::thread worker_;
};

}  // namespace spillway
