// A small network trained from a seed, inside a Session or not, which the tests of Sessions compare.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "swap/optim/optimizer.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"

namespace spillway::testing {
using namespace swap;

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int64_t channels) {
    using namespace torch::nn;
    first = register_module("first", Conv2d(Conv2dOptions(3, channels, 3).padding(1)));
    norm = register_module("norm", BatchNorm2d(channels));
    for (int i = 0; i < 5; ++i) middle->push_back(Conv2d(Conv2dOptions(channels, channels, 3).padding(1)));
    register_module("middle", middle);
    head = register_module("head", Linear(channels, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto a = norm(first(x));
    at::leaky_relu_(a, 0.01);
    for (auto& layer : *middle) a = a + at::relu(layer->as<torch::nn::Conv2d>()->forward(a));
    return head(a.mean({2, 3}));
  }
  torch::nn::Conv2d first{nullptr};
  torch::nn::ModuleList middle;
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(SmallNet);

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<char>> state;
  SessionStats stats;
  int64_t floor_bytes = 0;
  /// The bytes of each operator of the last planned trace: its arguments, and its outputs with scratch. Bytes outside
  /// of pages are not counted.
  std::vector<std::pair<int64_t, int64_t>> operator_bytes;
};

struct Training {
  uint64_t seed = 1;
  int64_t channels = 8;
  int64_t edge = 24;
  int steps = 4;
  /// Called after each step, on the training thread.
  std::function<void(int step)> after_step = nullptr;
};

/// Trains a network; with `options`, inside a Session of this thread. Each call has random numbers of its own, so that
/// calls may run on several threads at once.
inline Trained train(const Training& training, const std::optional<SessionOptions>& options) {
  at::set_num_threads(1);  // for this thread, because the tensors are too small to share
  Trained result;
  auto random = at::make_generator<at::CPUGeneratorImpl>(training.seed);
  std::optional<Session> session;
  if (options) session.emplace(*options);
  SmallNet net(training.channels);
  for (auto& p : net->parameters()) {
    at::NoGradGuard no_grad;
    p.uniform_(-0.3, 0.3, random);
  }
  Adam adam(net->parameters(), {.lr = 1e-2, .group_bytes = 1 << 14});
  auto input = at::rand({4, 3, training.edge, training.edge}, random);
  auto target = at::randint(5, {4}, random, at::kLong);
  for (int i = 0; i < training.steps; ++i) {
    std::optional<Session::Step> step;
    if (session) step.emplace(session->step());
    auto loss = at::cross_entropy_loss(net(input), target);
    loss.backward();
    adam.step();
    adam.zero_grad();
    result.losses.push_back(loss.item<double>());
    if (step) step->finish();
    if (training.after_step) training.after_step(i);
  }
  if (session) {
    result.stats = session->stats();
    result.floor_bytes = session->trace()->floor_bytes();
    for (const OperatorRecord& op : session->trace()->operators)
      result.operator_bytes.emplace_back(op.leased_bytes, op.own_bytes);
  }
  // The state is read inside the Session. While other Sessions are open, tensors that stay after it may be absent.
  auto keep = [&](const at::Tensor& tensor) {
    auto lent = resident_read(tensor);
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    result.state.emplace_back(data, data + tensor.nbytes());
  };
  for (auto& p : net->parameters()) keep(p);
  for (auto& b : net->buffers()) keep(b);
  return result;
}

inline void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.state.size(), b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) EXPECT_TRUE(a.state[i] == b.state[i]) << "tensor " << i;
}

}  // namespace spillway::testing
