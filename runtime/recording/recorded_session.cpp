#include "runtime/recording/recorded_session.h"

#include <stdexcept>
#include <utility>

namespace spillway {

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
