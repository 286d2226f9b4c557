/// Operators whose tensors are too large to be resident together, run window by window.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "swap/windows/split_sizes.h"

namespace spillway {

class WindowCall;

using OperatorArguments = c10::ArrayRef<c10::IValue>;

/// How an operator that runs in windows uses an argument's tensors.
enum class Touch : uint8_t {
  whole,    ///< leased while it runs
  windows,  ///< used window by window: they need not be resident
  nothing,  ///< only their shapes count
};

/// How one call of an operator runs in windows.
class WindowPlan {
 public:
  virtual ~WindowPlan() = default;
  /// Runs the operator window by window and returns its results, in the order of the schema. Called once.
  virtual std::vector<at::Tensor> run(WindowCall& call) = 0;

  std::vector<Touch> touches;  ///< by argument
};

/// Plans one kind of operator; nullptr when this call is small enough, or its layouts are not ones that it can split:
/// then the operator runs whole.
using WindowRule = std::unique_ptr<WindowPlan> (*)(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);

/// Whether all tensors that these arguments are, and all that they ask for, are on `device`; single numbers may be on
/// the host.
bool stays_on(c10::Device device, OperatorArguments arguments);

/// The rule for an operator; nullptr when there is none.
WindowRule window_rule_of(const c10::OperatorHandle& op);

// The rules, each in a file of its own: swap/windows_*.cpp. All take contiguous tensors; elementwise operators take any
// dense layout that their tensors share, convolutions channels-last as well.

/// Pointwise operators, in place or not, on tensors of one shape and layout (and single elements): flat ranges.
std::unique_ptr<WindowPlan> split_elementwise(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// cat and clone: nothing is computed, windows are only moved.
std::unique_ptr<WindowPlan> split_copies(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Pools and nearest upsampling, forward and backward: planes (sample, channel).
std::unique_ptr<WindowPlan> split_planes(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Batch norm and group norm, forward and backward: channels, groups.
std::unique_ptr<WindowPlan> split_norms(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Convolutions, forward and backward: samples, then slices along the first spatial dimension.
std::unique_ptr<WindowPlan> split_convolutions(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);

}  // namespace spillway
