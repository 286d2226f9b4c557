/// The error of an operator whose lists of tensors do not fit together.
#pragma once
#include <ATen/core/stack.h>

#include <string>

#include "core/error.h"

namespace c10 {
class OperatorHandle;
}

namespace spillway::swap {

/// Returns `error`, raised while the arguments of `op` on top of `stack` were leased, with the contents of its lists
/// (name, number of tensors, bytes). For fused optimizer kernels it adds the replacement to use. Returns `error`
/// unchanged when `op` has no list.
OutOfBudget naming_lists(const OutOfBudget& error, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace spillway::swap
