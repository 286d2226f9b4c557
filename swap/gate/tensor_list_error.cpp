#include "swap/gate/tensor_list_error.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "core/bytes.h"

namespace spillway::swap {

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

}  // namespace spillway::swap
