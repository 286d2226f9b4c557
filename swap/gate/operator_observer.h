/// The observer of a Session's operators.
#pragma once
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace spillway {

namespace swap {
class Pager;
}

/// Sees every operator that the gate runs, in order, on the thread that runs it. Used by reports and by test doubles
/// that check operators.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Called before the kernel, with its arguments on top of the stack, resident.
  virtual void before(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// Called after the kernel, with its results on top of the stack, registered; the leases still hold.
  virtual void after(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// Called when the leases have ended, so that storages may leave.
  virtual void released(swap::Pager&) {}
};

}  // namespace spillway
