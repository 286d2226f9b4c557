/// An observer that counts operators for whose results the host waits on a GPU.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>

#include "swap/gate/operator_observer.h"
#include "swap/session.h"

namespace spillway::testing {

/// A counter of numbers that are read, sizes that depend on values, and copies from a GPU to the host. The first two
/// are seen on the CPU, too. So operators that would wait on a GPU show without one.
class HostSyncs final : public OperatorObserver {
 public:
  int64_t count = 0;

  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override {
    const std::string_view name = op.schema().name();
    count += name == "aten::_local_scalar_dense" || name == "aten::nonzero" || name == "aten::masked_select" ||
             name == "aten::equal" || name == "aten::_unique2";
    const auto argument = [&](size_t i) -> const c10::IValue& {
      return stack[stack.size() - op.schema().arguments().size() + i];
    };
    if (name == "aten::copy_") count += argument(0).toTensor().is_cpu() && argument(1).toTensor().is_cuda();
    if (name == "aten::_to_copy" && argument(3).isDevice())
      count += argument(0).toTensor().is_cuda() && argument(3).toDevice().is_cpu();
  }
};

}  // namespace spillway::testing
