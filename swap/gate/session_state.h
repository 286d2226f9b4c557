/// The inside of a Session, as the gate sees it.
#pragma once
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <unordered_map>

#include "swap/conductor/conductor.h"
#include "swap/gate/device_pager.h"
#include "swap/gate/operator_recipe.h"
#include "swap/gate/operator_traits.h"
#include "swap/session.h"

namespace spillway {

/// The dispatch key of the gate: below autograd, above the backends. `Fake` was reserved for an out-of-tree project
/// that is archived; LibTorch itself registers nothing there.
inline constexpr c10::DispatchKey kGateKey = c10::DispatchKey::Fake;

/// Opens the gate on the current thread. Thread-local state carries both parts into autograd's threads.
struct GateGuards {
  /// `traced`: what the thread does belongs to the Session's steps.
  GateGuards(Session::State& state, bool traced);
  c10::DebugInfoGuard session;
  c10::impl::IncludeDispatchKeyGuard key;
};

struct Session::State {
  explicit State(SessionOptions options);

  /// The Session of the operator that runs on this thread; nullptr outside.
  static State* current();
  const OperatorTraits& traits(const c10::OperatorHandle& op);
  /// Of the owner's operators it is known what they need, and inside steps everything else.
  bool counting() const { return in_owners_work(); }
  /// On the owner's thread, or on one of those on which autograd runs a device's operators while the owner waits.
  bool in_owners_work() const;

  const SessionOptions options;
  const DevicePager::Share share;
  Pager& pager;
  Ledger& ledger;
  const std::unique_ptr<OperatorClock> clock;  // nullptr: the host's
  OperatorRecipes recipes;
  Conductor conductor;
  const std::thread::id owner;
  std::shared_mutex traits_mutex;
  std::unordered_map<const c10::FunctionSchema*, OperatorTraits> traits_by_schema;
  const std::shared_ptr<const void> alive = std::make_shared<char>();  ///< while this is
  std::optional<GateGuards> gate;
};

/// Registers the gate with LibTorch's dispatcher, once for the process: registrations cannot be taken back safely while
/// threads may be dispatching. Throws std::runtime_error when the key is taken.
void install_gate();

}  // namespace spillway
