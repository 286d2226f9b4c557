#include "swap/gate/autograd_purposes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <typeinfo>

namespace spillway::swap {

thread_local bool BucketScope::is_open_ = false;

bool is_weight(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
  return meta && meta->requires_grad_;
}

GradientWork gradient_work() {
  const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
  const torch::autograd::Node* running = node.get();
  if (!running || typeid(*running) != typeid(torch::autograd::AccumulateGrad)) return GradientWork::none;
  return running->post_hooks().empty() ? GradientWork::kept : GradientWork::hooked;
}

}  // namespace spillway::swap
