#include "swap/gate/operator_lease.h"

#include <ATen/core/Tensor.h>

#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::swap {
namespace {

/// Returns `error`, raised while the arguments of `op` on top of `stack` were leased, with the contents of its lists
/// (name, number of tensors, bytes). For fused optimizer kernels it adds the replacement to use. Returns `error`
/// unchanged when `op` has no list.
OutOfBudget naming_lists(const OutOfBudget& error, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::string lists;
  int64_t together = 0;
  for (size_t a = 0; a < count; ++a) {
    const c10::IValue& value = torch::jit::peek(stack, a, count);
    if (!value.isTensorList()) continue;
    int64_t tensors = 0, bytes = 0;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      ++tensors;
      bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
    if (tensors == 0) continue;
    lists += str(lists.empty() ? "" : ", ", schema.arguments()[a].name(), " (", tensors, " tensors, ",
                 format_bytes(bytes), ")");
    together += bytes;
  }
  if (lists.empty()) return error;
  std::string advice;
  if (schema.name().starts_with("aten::_fused_"))
    advice = "; spillway's optimizers (swap/optim/optimizer.h) call it for one group of parameters after another";
  return OutOfBudget(
      str("[gate] ", schema.name(), " takes its lists whole: ", lists, ", together ", format_bytes(together),
          " of a budget of ", format_bytes(error.budget_bytes()), advice, ". ", error.what()),
      error.requested_bytes(), error.budget_bytes());
}

}  // namespace

void OperatorLease::lease(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  try {
    if (!streamed.empty()) session_.pager.replayer().replay_before_use(streamed);
    if (!uses.empty()) session_.pager.lease(uses, session_.conductor.user());
  } catch (const OutOfBudget& error) {
    throw naming_lists(error, op, stack);
  }
  leased_ = true;
}

}  // namespace spillway::swap
