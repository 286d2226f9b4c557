// Tests of autograd's rarer features: custom functions, hooks, recomputation, higher derivatives, modes.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>

#include "tests/support/unchanged.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
using testing::expect_unchanged;
using testing::Tensors;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.square();
  }
  static tensor_list backward(AutogradContext* context, tensor_list g) {
    return {2 * context->get_saved_variables()[0] * g[0]};
  }
};

TEST(AutogradTest, CustomFunctions) {
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    auto y = Square::apply(x).exp();
    y.sum().backward();
    return Tensors{y.detach(), x.grad()};
  });
}

TEST(AutogradTest, DoubleBackwardAndRetainedGraphs) {
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    auto y = Square::apply(x).exp().sum();
    auto first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    auto second = torch::autograd::grad({first.square().sum()}, {x}, {}, true)[0];
    y.backward({}, true);
    y.backward();
    return Tensors{first.detach(), second, x.grad()};
  });
}

TEST(AutogradTest, TheInPlaceCheckStillSeesWrites) {
  expect_unchanged([] {
    auto x = at::randn({500}).requires_grad_();
    auto y = x.exp();
    y.add_(1);
    bool refused = false;
    try {
      y.sum().backward();
    } catch (const std::exception&) {
      refused = true;
    }
    EXPECT_TRUE(refused);
    return Tensors{y.detach()};
  });
}

TEST(AutogradTest, InPlaceOperatorsOnViewsOfLeavesCopies) {
  expect_unchanged([] {
    auto x = at::randn({20, 50}).requires_grad_();
    auto y = x * 1;
    y.select(0, 3).mul_(2);
    y.slice(1, 0, 10).relu_();
    y.square().sum().backward();
    return Tensors{y.detach(), x.grad()};
  });
}

TEST(AutogradTest, GradientsAccumulateOverMicroBatches) {
  expect_unchanged([] {
    nn::Linear layer(64, 64);
    for (int i = 0; i < 4; ++i) layer(at::randn({8, 64})).square().mean().backward();
    return Tensors{layer->weight.grad(), layer->bias.grad()};
  });
}

TEST(AutogradTest, GradientsAreClippedByNormAndValue) {
  expect_unchanged([] {
    auto net = nn::Sequential(nn::Linear(40, 60), nn::Tanh(), nn::Linear(60, 3));
    net->forward(at::randn({8, 40})).square().sum().backward();
    const double norm = nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    nn::utils::clip_grad_value_(net->parameters(), 0.01);
    Tensors result{at::scalar_tensor(norm)};
    for (auto& p : net->parameters()) result.push_back(p.grad());
    return result;
  });
}

/// Activation checkpointing. It saves only the input, and backward runs the part again.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return part(x, weight);
  }
  static tensor_list backward(AutogradContext* context, tensor_list g) {
    auto saved = context->get_saved_variables();
    auto x = saved[0].detach().requires_grad_(), weight = saved[1].detach().requires_grad_();
    {
      at::AutoGradMode grad(true);
      auto y = part(x, weight);
      y.backward(g[0]);
    }
    return {x.grad(), weight.grad()};
  }
  static at::Tensor part(const at::Tensor& x, const at::Tensor& weight) {
    return at::layer_norm(at::gelu(x.matmul(weight)), {32}).tanh();
  }
};

TEST(AutogradTest, ActivationCheckpointingByRecomputation) {
  expect_unchanged([] {
    auto x = at::randn({16, 32}).requires_grad_();
    Tensors weights;
    for (int i = 0; i < 3; ++i) weights.push_back(at::randn({32, 32}).requires_grad_());
    auto y = x;
    for (auto& w : weights) y = Checkpoint::apply(y, w);
    y.square().sum().backward();
    return Tensors{x.grad(), weights[0].grad(), weights[1].grad(), weights[2].grad()};
  });
}

/// Saved-tensor hooks of a user that keep half of the tensor instead of the tensor.
struct KeepHalf final : torch::autograd::SavedVariableHooks {
  void call_pack_hook(const at::Tensor& tensor) override { kept = tensor.detach() * 0.5; }
  at::Tensor call_unpack_hook() override { return kept * 2; }
  at::Tensor kept;
};

TEST(AutogradTest, SavedTensorHooksOfTheUsers) {
  expect_unchanged([] {
    auto x = at::randn({700}).requires_grad_();
    auto y = x.exp();
    auto node = std::dynamic_pointer_cast<torch::autograd::generated::ExpBackward0>(y.grad_fn());
    node->result_.register_hooks(std::make_unique<KeepHalf>());
    auto busy = y.detach() + 1;
    y.sum().backward();
    return Tensors{x.grad(), busy};
  });
}

TEST(AutogradTest, HooksOfTensors) {
  expect_unchanged([] {
    auto x = at::randn({700}).requires_grad_();
    auto y = x.sin();
    at::Tensor seen;
    y.register_hook([&](const at::Tensor& g) {
      seen = g.clone();
      return g * 3;
    });
    x.register_hook([](const at::Tensor& g) { return g + 1; });
    y.square().sum().backward();
    return Tensors{x.grad(), seen};
  });
}

TEST(AutogradTest, AutocastInBfloat16) {
  expect_unchanged([] {
    nn::Conv2d conv(nn::Conv2dOptions(4, 8, 3).padding(1));
    nn::Linear head(8, 3);
    auto x = at::randn({2, 4, 16, 16});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    auto y = head(conv(x).mean({2, 3}));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    y.to(at::kFloat).square().mean().backward();
    return Tensors{y.detach(), conv->weight.grad(), head->weight.grad()};
  });
}

TEST(AutogradTest, InferenceModeAndNoGrad) {
  expect_unchanged([] {
    auto net = nn::Sequential(nn::Linear(40, 60), nn::ReLU(), nn::BatchNorm1d(60), nn::Linear(60, 3));
    auto x = at::randn({8, 40});
    at::Tensor inferred, plain;
    {
      c10::InferenceMode inference;
      inferred = net->forward(x).clone();
    }
    {
      at::NoGradGuard no_grad;
      plain = net->forward(x);
    }
    return Tensors{inferred, plain};
  });
}

TEST(AutogradTest, BackwardThroughManyBranchesOfOneActivation) {
  expect_unchanged([] {
    auto x = at::randn({600}).requires_grad_();
    auto a = x.tanh();
    at::Tensor sum = at::zeros({600});
    for (int i = 1; i < 8; ++i) sum = sum + (a * i).sin() * a;
    sum.sum().backward();
    return Tensors{x.grad(), sum.detach()};
  });
}

}  // namespace
}  // namespace spillway
