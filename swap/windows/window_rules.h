/// Rules for operators whose tensors are too large to be resident together, which run window by window.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "swap/windows/split_sizes.h"

namespace spillway::swap {

class WindowCall;

using OperatorArguments = c10::ArrayRef<c10::IValue>;

/// The way in which an operator that runs in windows uses an argument's tensors.
enum class ArgumentUse : uint8_t {
  whole,    ///< leased while it runs
  windows,  ///< used window by window: they need not be resident
  nothing,  ///< only their shapes count
};

/// The way in which one call of an operator runs in windows.
class WindowPlan {
 public:
  virtual ~WindowPlan() = default;
  /// Runs the operator window by window and returns its results, in the order of the schema. Called once.
  virtual std::vector<at::Tensor> run(WindowCall& call) = 0;

  std::vector<ArgumentUse> argument_uses;  ///< by argument
};

/// Plans one kind of operator. Returns nullptr when this call is small enough, or when the rule cannot split its
/// layouts; then the operator runs whole.
using WindowRule = std::unique_ptr<WindowPlan> (*)(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);

/// True when all tensors that these arguments are, and all that they ask for, are on `device`; single numbers may be on
/// the host.
bool stays_on(c10::Device device, OperatorArguments arguments);

/// Returns the rule for an operator; nullptr when there is none.
WindowRule window_rule_of(const c10::OperatorHandle& op);

// The rules, each in a file of its own: swap/windows/*.cpp. All take contiguous tensors. Elementwise operators take any
// dense layout that their tensors share, convolutions channels-last as well.

/// Splits pointwise operators, in place or not, on tensors of one shape and layout (and single elements): flat ranges.
std::unique_ptr<WindowPlan> split_elementwise(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Splits cat and clone: nothing is computed, windows are only moved.
std::unique_ptr<WindowPlan> split_copies(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Splits pools and nearest upsampling, forward and backward: planes (sample, channel).
std::unique_ptr<WindowPlan> split_pooling(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Splits batch norm and group norm, forward and backward: channels, groups.
std::unique_ptr<WindowPlan> split_norms(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);
/// Splits convolutions, forward and backward: samples, then slices along the first spatial dimension.
std::unique_ptr<WindowPlan> split_convolutions(const c10::OperatorHandle&, OperatorArguments, const WindowSizes&);

}  // namespace spillway::swap
