/// What the gate must know of an operator, read once from its schema.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "swap/windows/window_rules.h"

namespace spillway {

enum class OperatorKind : uint8_t {
  view,        ///< outputs alias arguments and nothing is read or written
  shape_only,  ///< makes new storages without reading arguments
  memory,   ///< the same, but leaves them to be written, through a pointer perhaps: they are no pages before a kernel
  kernel,   ///< reads and writes storages
  refused,  ///< cannot be made safe inside a Session
};

struct OperatorTraits {
  OperatorKind kind;         ///< of the kernel, where there is one
  std::string name;          ///< `aten::add.Tensor`
  std::vector<bool> writes;  ///< by argument
  bool may_wait = false;     ///< for other threads, as collectives do
  bool composite = false;    ///< made of other operators, which pass the gate themselves
  bool replayable = false;   ///< cheap; the same bits from the same arguments; writes nothing but what its schema says
  bool shares_memory = false;    ///< results hold the arguments' memory without being views of them (copy on write)
  bool keeps_arguments = false;  ///< in an object of its own, where nobody sees them (weights that are packed)
  WindowRule windows = nullptr;  ///< how large calls are split; nullptr: they are not
};

/// Reads the schema, corrected by what is known of operators whose schemas do not tell everything they write
/// (`native_batch_norm` and its kin write running statistics). Operators outside aten, prims and spillway are taken to
/// write every argument; c10d's are asynchronous and unannotated, so they are refused.
OperatorTraits traits_of(const c10::OperatorHandle& op);

/// Whether this call, its arguments on the stack, could be run again instead of keeping what it makes.
bool is_replayable(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// Whether a call with these keys runs as other operators. A composite may have a kernel of its own on some backend, as
/// `silu_backward` has on the CPU; there it runs as one.
bool runs_as_parts(const OperatorTraits& traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys);

}  // namespace spillway
