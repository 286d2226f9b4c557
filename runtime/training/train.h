/// `spillway train` as a function.
#pragma once
#include <atomic>
#include <string>

#include "runtime/training/train_result.h"
#include "runtime/training/training_run.h"

namespace spillway {

/// Hears how a run goes, on every rank; most print on rank 0 only.
class TrainListener {
 public:
  virtual ~TrainListener() = default;
  /// The request is feasible and training is about to begin; what it throws ends the run before it starts.
  virtual void on_start() {}
  /// A decision and its reason, in one line.
  virtual void on_decision(const std::string&) {}
  /// After every step; `resident_bytes` are held on this rank now.
  virtual void on_step(int64_t /*step*/, int64_t /*steps*/, const StepOutcome&, int64_t /*resident_bytes*/) {}
  virtual void on_metric(const MetricPoint&) {}
};

/// Requests to a training while it runs, from a signal handler or another thread. One rank's are every rank's.
struct TrainRequests {
  std::atomic<bool> stop = false;        ///< end after the current step
  std::atomic<bool> checkpoint = false;  ///< write a checkpoint after the current step and go on; train() clears it
  static_assert(std::atomic<bool>::is_always_lock_free, "set in signal handlers");
};

/// Opens the data of `options` and puts what several runs share together; with Placement::measured rank 0 measures.
/// Collective. Throws BadRequest.
RunContext make_context(const TrainOptions& options, ddl::Comm comm);

/// Runs one step and one validation without a budget on a copy of everything, made from the same seed, to learn what
/// they need. Collective.
Observation observe(const RunContext& context);

/// The request with a percentage turned into bytes.
BudgetRequest in_bytes(const BudgetRequest& request, const Observation& observed);

/// The budget in bytes that `request` means beside `observed`. Throws InfeasibleBudget, naming the operator, its bytes
/// and the smallest feasible budget, when it is below the floor and may not be exceeded.
int64_t resolve_budget(const BudgetRequest& request, const Observation& observed, bool may_be_exceeded = false);

/// Trains. When the options ask for a budget, a step is observed first; the budget must be feasible before anything
/// else happens. `requests`, if any, are looked at once a step.
/// Collective over `context`'s ranks; losses and metrics are the same on all of them.
/// Throws BadRequest, InfeasibleBudget, OutOfBudget, ddl::CommError.
TrainResult train(const RunContext& context, TrainListener& listener, TrainRequests* requests = nullptr);

}  // namespace spillway
