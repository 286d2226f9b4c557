/// The operators of other libraries that may run inside a Session.
#pragma once
#include <ATen/core/stack.h>

#include <span>

namespace spillway::swap {

/// Returns true when a call of torch.distributed's, with these arguments, has ended when its operator returns, so that
/// its tensors may move afterwards.
using IsBlocking = bool (*)(std::span<const c10::IValue> arguments);

/// Sets what decides which of torch.distributed's calls may run inside a Session; without it none may. Call it before
/// the first Session opens.
void set_blocking_collectives(IsBlocking is_blocking);
/// Asks it.
bool is_blocking_collective(std::span<const c10::IValue> arguments);

}  // namespace spillway::swap
