#include "runtime/recording/session_recorder.h"

#include <algorithm>
#include <iterator>
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

}  // namespace spillway
