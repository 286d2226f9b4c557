/// A recorder of a Session's steps, and a Session that is recorded.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "runtime/recording/session_report.h"
#include "swap/session.h"

namespace spillway {

namespace runtime {
class StepRecorder;
}

/// Records the first three steps of each kind, which show how a Session settles, and keeps the last of them. Later
/// steps cost a reading of the clock. Used on the Session's thread.
class SessionRecorder {
 public:
  /// Opens the device of `options`, with which a Session is about to open, and adds recording timelines and an observer
  /// to them. Options that have an observer already keep it, and no step is recorded. Throws as Session does.
  explicit SessionRecorder(SessionOptions& options);
  ~SessionRecorder();
  SessionRecorder(const SessionRecorder&) = delete;
  SessionRecorder& operator=(const SessionRecorder&) = delete;

  /// Call it as a step begins, and as it has ended or was forgotten.
  void begin_step(const std::string& kind);
  void end_step(bool forgotten = false);

  /// Returns what the Session did. The recorded step is of the kind that there were most steps of.
  SessionReport report(Session& session) const;

 private:
  const std::string device_;
  const int64_t budget_bytes_;
  const std::shared_ptr<runtime::StepRecorder> recorder_;
  std::map<std::string, std::vector<double>> seconds_by_kind_;
  std::map<std::string, StepRecording> recordings_;
  std::string kind_;
  SteadyTime began_;
  bool recording_ = false;
};

/// A Session, its recorder, and the step that is open in it. Bindings of other languages stand on it. Used on the
/// Session's thread.
class RecordedSession {
 public:
  /// Opens the Session. Throws as Session does.
  explicit RecordedSession(SessionOptions options);

  /// Begins a step. Throws std::logic_error when one is open, because steps do not nest. No step is open after a throw
  /// of the device or of the recorder.
  void begin_step(const std::string& kind);
  /// Ends the open step, if there is one. Throws as Session::Step::finish() does; the step has ended all the same.
  void end_step();
  /// Ends the open step as an exception does.
  void forget_step();
  /// Returns what the Session did.
  SessionReport report() { return recorder_.report(session()); }
  /// Closes the Session; the open step is forgotten. Doing it again does nothing.
  void close();
  /// Returns the Session. Throws std::logic_error when it is closed.
  Session& session();

 private:
  Session::Step take_step();

  SessionRecorder recorder_;
  std::optional<Session> session_;
  std::optional<Session::Step> step_;
};

}  // namespace spillway
