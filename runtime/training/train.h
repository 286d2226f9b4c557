/// `spillway train` as a function.
#pragma once
#include <cstdint>
#include <string>

#include "ddl/torch/comm.h"
#include "runtime/interruption/train_requests.h"
#include "runtime/results/train_result.h"

namespace spillway {

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

/// Trains with `options`, over the ranks of `comm` (null: this process alone). When the options ask for a budget, a
/// step is observed first. The budget must be feasible before anything else happens. `requests`, if any, are read
/// before each operator. A run that is stopped in the midst of a step leaves it, and ends with the state of the last
/// whole step, which is saved. So does a run whose disk cannot take its pages, and then throws DiskError. Collective;
/// losses and metrics are the same on all of them. Throws BadRequest, InfeasibleBudget, OutOfBudget, DiskError,
/// ddl::CommError; Interrupted when it is stopped while the budget is chosen, because it has no results then.
TrainResult train(const TrainOptions& options, ddl::Comm comm, TrainListener& listener,
                  TrainRequests* requests = nullptr);

}  // namespace spillway
