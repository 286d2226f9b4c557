/// The state of a Session, as the gate sees it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "swap/conductor/conductor.h"
#include "swap/gate/device_share.h"
#include "swap/gate/operator_recipe.h"
#include "swap/gate/operator_traits.h"
#include "swap/gate/session_options.h"
#include "swap/gate/session_scope.h"

namespace spillway::swap {

/// Closes the gate on the thread that opened it. Elsewhere that thread has ended and took its state along, so the
/// guards must not restore it: they would change the state of the thread that they end on.
struct EndGate {
  std::thread::id owner;
  void operator()(GateGuards* guards) const noexcept;
};

class SessionState {
 public:
  explicit SessionState(SessionOptions options);

  /// Returns the Session of the operator that runs on this thread; nullptr outside.
  static SessionState* current();
  /// Returns the scope that a thread carries while it works for the Session.
  SessionScope scope(bool traced) { return {.session = this, .alive = alive, .clock = clock.get(), .traced = traced}; }
  /// Returns the operator's traits. Cost when it ran before: one load.
  const OperatorTraits& traits(const c10::OperatorHandle& op);
  /// True when the running operator is measured: the needs of the owner's operators are always counted, and inside
  /// steps their traces are recorded.
  bool is_measured() const { return in_owners_work(); }
  /// True on the owner's thread, and on a thread where autograd runs a device's operators while the owner waits.
  bool in_owners_work() const;

  const SessionOptions options;  ///< with the device's own split_bytes
  const DeviceShare share;
  Pager& pager;
  Ledger& ledger;
  const std::unique_ptr<ComputeClock> clock;  // nullptr: the host's clock
  ComputeClock* step_clock = nullptr;         // the clock, while the open step is timed by it
  OperatorRecipes recipes;
  Conductor conductor;
  const std::thread::id owner;
  const std::shared_ptr<const void> alive = std::make_shared<char>();  ///< expires with this state
  std::unique_ptr<GateGuards, EndGate> gate;

 private:
  using KnownTraits = std::pair<const c10::FunctionSchema* const, OperatorTraits>;

  std::mutex traits_mutex_;
  std::unordered_map<const c10::FunctionSchema*, OperatorTraits> traits_;  // entries stay where they are
  std::array<std::atomic<const KnownTraits*>, 1024> recent_traits_{};      // by the schema's hash
};

/// Registers the gate with LibTorch's dispatcher, once for the process, because registrations cannot be taken back
/// safely while threads may be dispatching. Throws std::runtime_error when the key is taken.
void install_gate();

}  // namespace spillway::swap
