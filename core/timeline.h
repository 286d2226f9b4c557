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

/// The completion of one piece of asynchronous work. Copies share it. An empty ticket is complete.
class Ticket {
 public:
  Ticket() = default;
  bool done() const;
  /// Complete, and without an error.
  bool succeeded() const;
  /// Blocks until the work is complete; throws the work's error, every time it is asked.
  void wait() const;

 private:
  friend class TicketSource;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
    std::shared_ptr<State> rest;  // what the work goes on as, once this part of it is done
  };
  std::shared_ptr<State> state_;
};

/// The side that completes a Ticket, once.
class TicketSource {
 public:
  TicketSource();
  Ticket ticket() const;
  void complete(std::exception_ptr error = nullptr);
  /// This part of the work is done and it goes on as `rest`: complete when that is, with its error.
  void continue_as(Ticket rest);

 private:
  std::shared_ptr<Ticket::State> state_;
};

/// What a lane has copied so far, and how long it was busy with that.
struct CopyTotals {
  int64_t bytes = 0;
  double seconds = 0;
};

/// A lane of work that runs in the order of submission, beside the caller: a worker thread on the CPU, a stream on
/// CUDA. Nothing orders two timelines but tickets that the caller waits for. Thread-safe.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Copies `bytes` from `source` to `destination` after everything submitted before. Both must stay valid until the
  /// ticket is done. Does not block the caller. An error travels in the ticket; later work still runs.
  [[nodiscard]] virtual Ticket copy(void* destination, const void* source, int64_t bytes) = 0;
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
