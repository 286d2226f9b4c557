/// The listener of a training run.
#pragma once
#include <cstdint>
#include <string>

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

}  // namespace spillway
