/// Records one step from inside: operators, copies and memory by category.
#pragma once
#include <atomic>
#include <memory>

#include "core/ledger.h"
#include "core/timeline.h"
#include "runtime/results/train_result.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"
#include "swap/tiers/disk_io.h"

namespace spillway {

/// Idle until start(); costs nothing then but a flag. `start` and `stop` on the Session's thread.
class StepRecorder final : public OperatorObserver {
 public:
  explicit StepRecorder(const Ledger& ledger) : ledger_(ledger) {}

  void start(int64_t step);
  /// What was seen since start(); the recorder is idle again.
  StepRecording stop();
  /// A copy lane whose copies are recorded too.
  std::unique_ptr<Timeline> record_lane(std::string_view lane);
  /// A disk whose reads and writes are recorded too, as the time that it was busy with either.
  std::unique_ptr<DiskIo> record_disk(std::unique_ptr<DiskIo> disk);
  /// Adds work of the caller's own, on any lane.
  void add(std::string name, std::string lane, SteadyTime start, SteadyTime end, int64_t bytes);

  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;

 private:
  void sample();

  const Ledger& ledger_;
  std::atomic<bool> recording_ = false;
  StepRecording step_;
  SteadyTime began_;
  SteadyTime operator_began_;
  std::unique_ptr<TraceEvents> events_ = std::make_unique<TraceEvents>();
};

}  // namespace spillway
