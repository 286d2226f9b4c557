/// Sees the operators of a Session.
#pragma once
#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace spillway {

class Pager;

/// Sees every operator that the gate runs, in order, on the thread that runs it. For reports and for checking doubles.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Arguments are on top of the stack, resident.
  virtual void before(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// Results are on top of the stack, registered; the leases still hold.
  virtual void after(const c10::OperatorHandle&, const torch::jit::Stack&) {}
  /// The leases have ended; storages may leave.
  virtual void released(Pager&) {}
};

}  // namespace spillway
