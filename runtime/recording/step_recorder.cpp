#include "runtime/recording/step_recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/clock.h"

namespace spillway::runtime {

namespace {

/// A disk that reports each operation from its start, or from the end of the operation before it in its direction.
class RecordedDisk final : public swap::DiskIo {
 public:
  RecordedDisk(std::unique_ptr<swap::DiskIo> real, StepRecorder& recorder)
      : real_(std::move(real)), recorder_(recorder), kept_(recorder.weak_from_this().lock()) {}
  void start(swap::DiskOperation& operation) override {
    started_[&operation] = Clock::now();
    real_->start(operation);
  }
  swap::DiskOperation& wait() override {
    swap::DiskOperation& operation = real_->wait();
    const auto now = Clock::now();
    Clock::time_point& busy_until = operation.write ? written_ : read_;
    recorder_.add("page", operation.write ? "disk write" : "disk read", std::max(started_[&operation], busy_until), now,
                  operation.bytes);
    busy_until = now;
    return operation;
  }
  std::string name() const override { return real_->name(); }

 private:
  const std::unique_ptr<swap::DiskIo> real_;
  StepRecorder& recorder_;
  const std::shared_ptr<const StepRecorder> kept_;
  std::map<const swap::DiskOperation*, Clock::time_point> started_;
  Clock::time_point written_{}, read_{};
};

}  // namespace

void StepRecorder::start(int64_t step) {
  std::lock_guard lock(mutex_);
  step_ = {};
  step_.step = step;
  began_ = step_.began = Clock::now();
  events_ = std::make_unique<TraceEvents>();
  recording_ = true;
  sample();
}

StepRecording StepRecorder::stop() {
  sample();
  std::lock_guard lock(mutex_);
  recording_ = false;
  step_.seconds = seconds_since(began_);
  step_.events = events_->events();
  return std::move(step_);
}

std::unique_ptr<Timeline> StepRecorder::record_lane(std::string_view lane) {
  std::string name(lane);
  return std::make_unique<WorkerTimeline>(name, record_jobs("page", name));
}

WorkerTimeline::Observer StepRecorder::record_jobs(std::string name, std::string lane) {
  return [this, kept = weak_from_this().lock(), name = std::move(name), lane = std::move(lane)](
             SteadyTime start, SteadyTime end, int64_t bytes) { add(name, lane, start, end, bytes); };
}

std::unique_ptr<swap::DiskIo> StepRecorder::record_disk(std::unique_ptr<swap::DiskIo> disk) {
  return std::make_unique<RecordedDisk>(std::move(disk), *this);
}

void StepRecorder::add(std::string name, std::string lane, SteadyTime start, SteadyTime end, int64_t bytes) {
  if (!recording_) return;
  std::lock_guard lock(mutex_);
  if (recording_) events_->add(std::move(name), std::move(lane), start, end, bytes);
}

void StepRecorder::before(const c10::OperatorHandle&, const torch::jit::Stack&) {
  if (recording_) operator_began_ = Clock::now();
}

void StepRecorder::after(const c10::OperatorHandle& op, const torch::jit::Stack&) {
  if (!recording_) return;
  const std::string& name = op.schema().name();
  const bool communicates = name.starts_with("c10d::") || (name.starts_with("spillway::") && name != "spillway::eigh");
  add(name, communicates ? "communication" : "compute", operator_began_, Clock::now(), 0);
  sample();
}

void StepRecorder::sample() {
  step_.memory.push_back({seconds_since(began_), ledger_.used_by_category()});
}

}  // namespace spillway::runtime
