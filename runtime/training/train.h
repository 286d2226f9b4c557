/// `spillway train` as a function.
#pragma once
#include <atomic>
#include <string>

#include "runtime/results/train_result.h"
#include "runtime/training/run_context.h"

namespace spillway {

struct StepOutcome;

/// A listener to the progress of a run, on every rank. Most listeners print on rank 0 only.
class TrainListener {
 public:
  virtual ~TrainListener() = default;
  /// Called when the request is feasible and training is about to begin. An error that it throws ends the run before it
  /// starts.
  virtual void on_start() {}
  /// Called with a decision and its reason, in one line.
  virtual void on_decision(const std::string&) {}
  /// Called after every step; `resident_bytes` are the bytes held on this rank now.
  virtual void on_step(int64_t /*step*/, int64_t /*steps*/, const StepOutcome&, int64_t /*resident_bytes*/) {}
  virtual void on_metric(const MetricPoint&) {}
};

/// Requests to a training while it runs, from a signal handler or another thread. The requests of one rank apply to
/// every rank.
struct TrainRequests {
  std::atomic<bool> stop = false;        ///< end after the current step
  std::atomic<bool> checkpoint = false;  ///< write a checkpoint after the current step and go on; train() clears it
  static_assert(std::atomic<bool>::is_always_lock_free, "set in signal handlers");
};

/// Trains. When the options ask for a budget, a step is observed first. The budget must be feasible before anything
/// else happens. `requests`, if any, are read once a step.
/// Collective over `context`'s ranks; losses and metrics are the same on all of them.
/// Throws BadRequest, InfeasibleBudget, OutOfBudget, ddl::CommError.
TrainResult train(const RunContext& context, TrainListener& listener, TrainRequests* requests = nullptr);

}  // namespace spillway
