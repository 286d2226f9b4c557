#include "runtime/passes/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "runtime/passes/random_state.h"

namespace spillway::runtime {
namespace {

using Block = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

class Recompute final : public torch::autograd::Node {
 public:
  Recompute(Block block, std::vector<at::Tensor> inputs, RandomState random, torch::autograd::edge_list edges)
      : Node(std::move(edges)), block_(std::move(block)), inputs_(std::move(inputs)), random_(std::move(random)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const RandomState now(inputs_.front().device());
    random_.restore();
    std::vector<at::Tensor> again;
    for (const at::Tensor& input : inputs_) again.push_back(input.detach().requires_grad_(input.requires_grad()));
    at::Tensor result;
    {
      at::AutoGradMode with_gradients(true);
      result = block_(again);
    }
    now.restore();
    torch::autograd::backward({result}, {std::move(gradients[0])});
    torch::autograd::variable_list own;
    for (const at::Tensor& input : again) own.push_back(input.grad());
    return own;
  }
  std::string name() const override { return "Recompute"; }

 private:
  const Block block_;
  const std::vector<at::Tensor> inputs_;
  const RandomState random_;
};

}  // namespace

at::Tensor recomputed(Block block, std::vector<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return block(inputs);
  RandomState random(inputs.front().device());
  at::Tensor result;
  {
    at::NoGradGuard no_grad;
    result = block(inputs);
  }
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(inputs);
  std::shared_ptr<Recompute> node(
      new Recompute(std::move(block), std::move(inputs), std::move(random), std::move(edges)),
      torch::autograd::deleteNode);
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace spillway::runtime
