/// The Session that this thread works for, as LibTorch's thread-local state carries it into autograd's threads.
#pragma once
#include <c10/core/DispatchKey.h>

#include <memory>

#include "core/compute_clock.h"

namespace spillway::swap {

class SessionState;

/// The dispatch key of the gate: below autograd, above the backends. `Fake` was reserved for an out-of-tree project
/// that is archived; LibTorch itself registers nothing there.
inline constexpr c10::DispatchKey kGateKey = c10::DispatchKey::Fake;

/// The part of a thread's state that names its Session.
struct SessionScope {
  SessionState* session = nullptr;
  std::weak_ptr<const void> alive =
      {};                         ///< expires with the Session, because LibTorch hands it to work that may outlive that
  ComputeClock* clock = nullptr;  ///< the Session's clock; nullptr: the host's time counts
  bool traced = false;            ///< the thread's work belongs to the Session's steps

  /// Returns the scope of the operator that runs on this thread. Returns nullptr outside Sessions, after the Session
  /// that the thread was given has closed, and in children of fork().
  static const SessionScope* current();
};

/// Opens the gate on the current thread while it lives. LibTorch carries the scope and the key into autograd's threads.
/// The scope lies below other entries of the thread's debug information, because profilers start and stop inside and
/// outside of Sessions, and expect their own entry on top.
class GateGuards {
 public:
  explicit GateGuards(SessionScope scope);
  ~GateGuards();
  GateGuards(const GateGuards&) = delete;
  GateGuards& operator=(const GateGuards&) = delete;

 private:
  const bool was_open_;  // for another scope, as on a thread that works for a Session
};

/// False on a thread whose Session is open, and whose gate LibTorch has closed: the Session was opened in a scope that
/// has put the thread's state back at its end, such as c10::InferenceMode.
bool gate_is_as_opened();

}  // namespace spillway::swap
