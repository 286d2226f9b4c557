/// A Session whose steps are recorded, for callers that have no scopes of C++.
#pragma once
#include <optional>
#include <string>

#include "runtime/recording/session_recorder.h"
#include "swap/session.h"

namespace spillway {

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
