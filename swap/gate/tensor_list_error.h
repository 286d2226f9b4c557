/// What is said when an operator's lists of tensors do not fit together.
#pragma once
#include <ATen/core/stack.h>

#include <string>

#include "core/error.h"

namespace c10 {
class OperatorHandle;
}

namespace spillway {

/// `error`, raised while the arguments of `op` on top of `stack` were leased, with what its lists hold (name, number of
/// tensors, bytes) and, for fused optimizer kernels, what to use instead. The same error when it has no list.
OutOfBudget naming_lists(const OutOfBudget& error, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace spillway
