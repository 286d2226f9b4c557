#include "runtime/recording/session_recorder.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/ledger.h"
#include "runtime/recording/step_recorder.h"
#include "runtime/recording/summarize_paging.h"
#include "swap/schedule/step_trace.h"
#include "swap/tiers/disk_io.h"

namespace spillway {
namespace {

constexpr size_t kRecordedSteps = 3;

/// Adds a recorder to the options. They keep it alive, and so do the lanes that they make, because these outlive the
/// Session where another one has joined it on the device.
std::shared_ptr<runtime::StepRecorder> added_to(SessionOptions& options) {
  if (options.observer) return nullptr;
  auto recorder = std::make_shared<runtime::StepRecorder>(open_device(options.device).ledger());
  options.observer = recorder;
  if (options.device == "cpu")  // a GPU's copies run on its own streams
    options.decorate_timeline = [recorder](std::unique_ptr<Timeline>, std::string_view lane) {
      return recorder->record_lane(lane);
    };
  options.decorate_disk = [recorder](std::unique_ptr<swap::DiskIo> disk) {
    return recorder->record_disk(std::move(disk));
  };
  return recorder;
}

}  // namespace

SessionRecorder::SessionRecorder(SessionOptions& options)
    : device_(options.device), budget_bytes_(options.budget_bytes), recorder_(added_to(options)) {}
SessionRecorder::~SessionRecorder() = default;

void SessionRecorder::begin_step(const std::string& kind) {
  kind_ = kind;
  const auto done = std::ssize(seconds_by_kind_[kind]);
  recording_ = recorder_ && std::cmp_less(done, kRecordedSteps);
  if (recording_) recorder_->start(done);
  began_ = Clock::now();
}

void SessionRecorder::end_step(bool forgotten) {
  if (!forgotten) seconds_by_kind_[kind_].push_back(seconds_since(began_));
  if (!std::exchange(recording_, false)) return;
  StepRecording recorded = recorder_->stop();
  if (!forgotten) recordings_[kind_] = std::move(recorded);
}

SessionReport SessionRecorder::report(Session& session) const {
  const SessionStats stats = session.stats();
  SessionReport report{.device = device_,
                       .budget_bytes = budget_bytes_,
                       .peak_bytes = stats.peak_bytes,
                       .peak_by_category = stats.peak_by_category,
                       .floor_bytes = session.neediest().bytes(),
                       .floor_operator = std::string(session.neediest().name),
                       .host_peak_bytes = stats.host_peak_bytes,
                       .disk_peak_bytes = stats.disk_peak_bytes,
                       .bytes_out = stats.pager.bytes_out,
                       .bytes_in = stats.pager.bytes_in,
                       .replays = stats.pager.replays,
                       .exposed_seconds = stats.pager.exposed_seconds,
                       .seconds_by_kind = seconds_by_kind_,
                       .kind = {},
                       .recording = {},
                       .paging = {}};
  const auto most = std::max_element(seconds_by_kind_.begin(), seconds_by_kind_.end(),
                                     [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  if (most == seconds_by_kind_.end()) return report;
  report.kind = most->first;
  if (const auto found = recordings_.find(report.kind); found != recordings_.end()) report.recording = found->second;
  const swap::StepTrace* trace = session.trace(report.kind);
  const swap::Schedule* schedule = session.schedule(report.kind);
  if (trace && schedule) report.paging = runtime::summarize_paging(*trace, *schedule);
  return report;
}

RecordedSession::RecordedSession(SessionOptions options) : recorder_(options) {
  session_.emplace(std::move(options));
}

void RecordedSession::begin_step(const std::string& kind) {
  if (step_) throw std::logic_error("[session.step] a step is open already; steps do not nest");
  Session::Step step = session().step(kind);  // which is forgotten if the recorder fails
  recorder_.begin_step(kind);
  step_.emplace(std::move(step));
}

void RecordedSession::end_step() {
  if (!step_) return;
  Session::Step step = take_step();
  try {
    step.finish();
  } catch (...) {
    recorder_.end_step(/*forgotten=*/true);
    throw;
  }
  recorder_.end_step();
}

void RecordedSession::forget_step() {
  if (!step_) return;
  take_step().forget();
  recorder_.end_step(/*forgotten=*/true);
}

void RecordedSession::close() {
  forget_step();
  session_.reset();
}

Session& RecordedSession::session() {
  if (!session_) throw std::logic_error("[session] it is closed");
  return *session_;
}

/// Takes the step out first, because a step that fails to end must not stay open.
Session::Step RecordedSession::take_step() {
  Session::Step step = std::move(*step_);
  step_.reset();
  return step;
}

}  // namespace spillway
