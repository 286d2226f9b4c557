/// The traits of an operator that the gate must know, read once from its schema.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <string_view>
#include <vector>

#include "swap/windows/window_rules.h"

namespace spillway::swap {

enum class OperatorKind : uint8_t {
  view,        ///< outputs alias arguments and nothing is read or written
  shape_only,  ///< makes new storages without reading arguments
  memory,      ///< makes new storages to be written later, perhaps through a pointer; they become pages at a kernel
  kernel,      ///< reads and writes storages
  refused,     ///< cannot be made safe inside a Session
};

struct OperatorTraits {
  OperatorKind kind;           ///< kind of the kernel, where there is one
  std::string_view name;       ///< `aten::add.Tensor`; lives as long as the process
  std::vector<bool> writes;    ///< by argument
  bool may_wait = false;       ///< may wait for other threads, as collectives do
  bool composite = false;      ///< made of other operators, which pass the gate themselves
  bool replayable = false;     ///< cheap; equal arguments give equal bits; writes nothing that its schema does not mark
  bool shares_memory = false;  ///< results hold the arguments' memory without being views of them (copy on write)
  bool keeps_arguments = false;  ///< in an object of its own, hidden from the gate (packed weights)
  std::string refusal = {};      ///< the reason, where the kind is refused
  bool keeps_gradients = false;  ///< its result may be a gradient, or a bucket of some (autograd_purposes.h)
  bool is_collective = false;    ///< torch.distributed's; refused unless the call blocks (blocking_operators.h)
  WindowRule windows = nullptr;  ///< the rule that splits large calls; nullptr: they are not split
};

/// Reads the schema, and corrects it for operators whose schemas do not tell everything they write (`native_batch_norm`
/// and its kin write running statistics). Operators outside aten, prims, spillway and _c10d_functional are taken to
/// write every argument. torch.distributed's collectives are asynchronous, so they are refused unless the backend of
/// their group blocks. Inductor's operators belong to compiled code, which also runs kernels that the gate does not
/// see, so they are refused as well.
OperatorTraits traits_of(const c10::OperatorHandle& op);

/// True when this call, its arguments on the stack, could be run again instead of keeping its results.
bool is_replayable(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

/// True when a call with these keys runs as other operators. A composite may have a kernel of its own on some backend,
/// as `silu_backward` has on the CPU; there it runs as one operator.
bool runs_as_parts(const OperatorTraits& traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys);

}  // namespace spillway::swap
