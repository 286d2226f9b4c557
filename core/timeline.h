/// Ordered asynchronous device work, and its completion.
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

/// Work that was handed to a device's queue, which runs it without the host: a copy on a CUDA stream. Thread-safe.
class QueuedWork {
 public:
  virtual ~QueuedWork() = default;
  /// Throws what the work failed with.
  virtual bool done() = 0;
  /// Blocks the host until it is done. Throws what it failed with.
  virtual void wait() = 0;
  /// What is submitted to the device's compute queue after this call runs after the work. Does not block the host.
  virtual void order_compute_after() = 0;
};

/// The completion of one piece of asynchronous work. Copies share it. An empty ticket is complete.
class Ticket {
 public:
  Ticket() = default;
  /// The completion of what a device's queue holds.
  explicit Ticket(std::shared_ptr<QueuedWork> work);
  bool done() const;
  /// Complete, and without an error.
  bool succeeded() const;
  /// Blocks until the work is complete; throws the work's error, every time it is asked.
  void wait() const;

  /// Orders compute behind the work: what the caller submits after this call sees its outcome. Where compute runs on
  /// the host that is wait(); behind a device's queue it returns at once, and host code must still wait() before it
  /// looks at bytes itself. Throws the error of work that has failed by now.
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
    std::shared_ptr<State> rest;       // what the work goes on as, once this part of it is done
    std::shared_ptr<QueuedWork> work;  // what a device does for it; its end is found out by asking
  };
  template <class Look>
  bool follow(Look&& look) const;
  std::shared_ptr<State> state_;
};

/// The side that completes a Ticket, once.
class TicketSource {
 public:
  TicketSource();
  Ticket ticket() const;
  void complete(std::exception_ptr error = nullptr);
  /// This part of the work is done and it goes on as `rest`: complete when that is, with its error.
  void chain_to(Ticket rest);

 private:
  std::shared_ptr<Ticket::State> state_;
};

/// What a lane has copied so far, and how long it was busy with that.
struct CopyTotals {
  int64_t bytes = 0;
  double seconds = 0;
  double stalled_seconds = 0;  ///< that the device's compute queue waited for copies which it was ordered after
};

enum class Side : uint8_t { host, device };

/// A lane of work that runs in the order of submission, beside the caller: a worker thread on the CPU, a stream on
/// CUDA. Nothing orders two timelines but tickets that the caller waits for, or orders compute after. A device's lane
/// starts each copy after what its compute queue was given before, so a copy sees what operators wrote, and does not
/// touch memory that operators still use. Thread-safe.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Copies `bytes` from `source` to `destination` after everything submitted before. Both must stay valid until the
  /// ticket is done. Does not block the caller. An error travels in the ticket; later work still runs.
  [[nodiscard]] virtual Ticket copy(void* destination, const void* source, int64_t bytes) = 0;
  /// Moves managed memory (Block::is_managed), whose address stays the same, in the order of the lane's copies.
  [[nodiscard]] virtual Ticket move(void* data, int64_t bytes, Side to);
  /// Of the copies that are done. Zeros when the lane does not measure. Thread-safe.
  virtual CopyTotals totals() const { return {}; }
};

/// A Timeline served by one worker thread. Destruction finishes what was submitted.
class WorkerTimeline final : public Timeline {
 public:
  /// Called on the worker after each copy with its start, end and bytes (for the trace and the measured rate).
  using Observer =
      std::function<void(std::chrono::steady_clock::time_point, std::chrono::steady_clock::time_point, int64_t bytes)>;
  explicit WorkerTimeline(std::string name, Observer observer = nullptr);
  ~WorkerTimeline() override;
  [[nodiscard]] Ticket copy(void* destination, const void* source, int64_t bytes) override;
  CopyTotals totals() const override;
  /// Runs any work on the lane; the ticket carries what it throws.
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
