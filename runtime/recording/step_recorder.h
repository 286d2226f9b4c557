/// A recorder of one step: its operators, copies and memory by category.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/ledger.h"
#include "core/timeline.h"
#include "core/trace_events.h"
#include "runtime/recording/session_report.h"
#include "swap/gate/operator_observer.h"
#include "swap/session.h"
#include "swap/tiers/disk_io.h"

namespace spillway::runtime {

/// An observer that is idle until start(). An idle recorder costs nothing but a flag. `start` and `stop` are called on
/// the Session's thread, add() and its callers on any thread. Lanes, disks and observers that it makes keep it alive
/// where it is shared, because another Session may go on with the device's lanes. Otherwise it must outlive them.
class StepRecorder final : public OperatorObserver, public std::enable_shared_from_this<StepRecorder> {
 public:
  explicit StepRecorder(const Ledger& ledger) : ledger_(ledger) {}

  void start(int64_t step);
  /// Returns the recording since start(); the recorder is idle again.
  StepRecording stop();
  /// Makes a copy lane whose copies are recorded too.
  std::unique_ptr<Timeline> record_lane(std::string_view lane);
  /// Returns an observer that adds a queue's jobs to `lane` as events called `name`.
  WorkerTimeline::Observer record_jobs(std::string name, std::string lane);
  /// Makes a disk whose reads and writes are recorded too, as the time that it was busy with either.
  std::unique_ptr<swap::DiskIo> record_disk(std::unique_ptr<swap::DiskIo> disk);
  /// Adds the caller's own work, on any lane. Thread-safe. Work that ends after stop() is left out.
  void add(std::string name, std::string lane, SteadyTime start, SteadyTime end, int64_t bytes);

  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;

 private:
  void sample();

  const Ledger& ledger_;
  std::mutex mutex_;                     ///< keeps late work of other threads out of the next recording
  std::atomic<bool> recording_ = false;  ///< changes under the mutex
  StepRecording step_;
  SteadyTime began_;
  SteadyTime operator_began_;
  std::unique_ptr<TraceEvents> events_ = std::make_unique<TraceEvents>();
};

}  // namespace spillway::runtime
