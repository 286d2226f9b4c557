/// The kernels of a Session's operators, where they are not LibTorch's.
#pragma once
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <memory>

#include "core/compute_clock.h"

namespace c10 {
class OperatorHandle;
}

namespace spillway::swap {

/// Runs operators in LibTorch's place. Used by one thread at a time.
class OperatorKernels {
 public:
  virtual ~OperatorKernels() = default;
  /// Runs one operator: replaces its arguments on top of the stack by its results. `keys` are the dispatch keys below
  /// the gate. Sees views, and the operators that other kernels and windows are made of, too.
  virtual void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
  /// Makes the clock of these kernels. Returns nullptr where the device's own clock tells how long they take.
  virtual std::unique_ptr<ComputeClock> make_clock() { return nullptr; }
};

}  // namespace spillway::swap
