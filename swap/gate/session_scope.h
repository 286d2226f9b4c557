/// The Session that this thread works for, as LibTorch's thread-local state carries it into autograd's threads.
#pragma once
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

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

/// Opens the gate on the current thread while it lives. Thread-local state carries both members into autograd's
/// threads.
struct GateGuards {
  explicit GateGuards(SessionScope scope);
  c10::DebugInfoGuard session;
  c10::impl::IncludeDispatchKeyGuard key;
};

}  // namespace spillway::swap
