// Tests of layers and tools on top of LibTorch: recurrent and attention layers, functorch, TorchScript, data loaders.
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/data.h>
#include <torch/jit.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/utils/rnn.h>
#include <torch/optim/adamw.h>

#include <thread>

#include "tests/support/unchanged.h"

namespace spillway {
using namespace swap;
namespace {

namespace nn = torch::nn;
namespace functorch = at::functorch;
using testing::evicting_everything;
using testing::expect_unchanged;
using testing::Tensors;

/// Runs three steps of AdamW, and returns the parameters after them.
template <class Loss>
Tensors train(Tensors parameters, Loss loss) {
  torch::optim::AdamW adamw(parameters, 1e-2);
  for (int i = 0; i < 3; ++i) {
    adamw.zero_grad();
    loss().backward();
    adamw.step();
  }
  for (auto& p : parameters) p = p.detach().clone();
  return parameters;
}

TEST(ModulesTest, BatchNormsRunningStatistics) {
  expect_unchanged([] {
    nn::BatchNorm1d norm(512);
    auto x = at::randn({8, 512});
    at::Tensor y;
    for (int i = 0; i < 3; ++i) y = norm(x * 1.5 + 0.1);
    norm->eval();
    return Tensors{norm->running_mean.clone(), norm->running_var.clone(), y.detach(), norm(x).detach()};
  });
}

TEST(ModulesTest, LstmAndGru) {
  expect_unchanged([] {
    nn::LSTM lstm(nn::LSTMOptions(16, 24).num_layers(2).batch_first(true).dropout(0.1));
    nn::GRU gru(nn::GRUOptions(24, 8).bidirectional(true));
    auto x = at::randn({4, 10, 16});
    Tensors parameters = lstm->parameters();
    for (auto& p : gru->parameters()) parameters.push_back(p);
    return train(parameters, [&] { return std::get<0>(gru(std::get<0>(lstm(x)))).square().sum(); });
  });
}

TEST(ModulesTest, PackedSequences) {
  expect_unchanged([] {
    nn::LSTM lstm(nn::LSTMOptions(3, 4));
    nn::GRU gru(nn::GRUOptions(4, 2).bidirectional(true));
    auto x = at::randn({10, 2, 3}).requires_grad_();
    auto packed = nn::utils::rnn::pack_padded_sequence(x, at::tensor({10, 5}, at::kLong));
    auto y = std::get<0>(gru->forward_with_packed_input(std::get<0>(lstm->forward_with_packed_input(packed))));
    auto padded = std::get<0>(nn::utils::rnn::pad_packed_sequence(y));
    padded.square().sum().backward();
    return Tensors{padded.detach(), x.grad(), lstm->parameters()[0].grad()};
  });
}

TEST(ModulesTest, LengthsAndIndicesInTensors) {
  expect_unchanged([] {
    auto logits = at::randn({50, 4, 20}).requires_grad_();
    auto targets = at::randint(1, 20, {4, 10}, at::kLong);
    // The operator converts lengths of another type inside.
    auto loss = at::ctc_loss(at::log_softmax(logits, 2), targets, at::tensor({50, 50, 40, 30}, at::kInt) + 0,
                             at::tensor({10, 9, 8, 7}, at::kInt) + 0);
    loss.backward();
    auto parts = at::tensor_split(logits.detach() * 2, at::tensor({10, 20}, at::kLong) + 0);
    return Tensors{loss.detach(), logits.grad(), parts[1] + 1};
  });
}

TEST(ModulesTest, Attention) {
  expect_unchanged([] {
    nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(24, 4));
    auto h = at::randn({10, 4, 24});
    return train(attention->parameters(), [&] {
      auto q = std::get<0>(attention(h, h, h)).view({10, 4, 4, 6}).permute({1, 2, 0, 3});
      return at::scaled_dot_product_attention(q, q, q, {}, 0.0, /*is_causal=*/true).square().sum();
    });
  });
}

TEST(ModulesTest, EmbeddingsAndTransformerLayers) {
  expect_unchanged([] {
    nn::Embedding table(50, 24);
    nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(24, 4).dim_feedforward(32).dropout(0.1));
    auto words = at::randint(0, 50, {7, 3}, at::kLong);
    Tensors parameters = layer->parameters();
    parameters.push_back(table->weight);
    return train(parameters, [&] { return layer(table(words)).square().sum(); });
  });
}

/// A guard that keeps a functorch transform on the stack while it lives.
struct Level {
  explicit Level(int64_t level) : level(level) {}
  ~Level() { functorch::popDynamicLayerAndDeleteMetadata(); }
  const int64_t level;
};

TEST(ModulesTest, FunctorchsVmap) {
  expect_unchanged([] {
    auto weights = at::randn({12, 20, 30});  // one per example
    auto x = at::randn({12, 30});
    at::Tensor y;
    {
      Level vmap(
          functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap, 12, functorch::RandomnessType::Error));
      auto w = functorch::makeBatched(weights, 0, vmap.level);
      auto v = functorch::makeBatched(x, 0, vmap.level);
      auto batched = at::tanh(w.matmul(v)) + w.sum(1);
      y = functorch::maybeGetBatchedImpl(batched)->value();
    }
    return Tensors{y, y.clone()};
  });
}

TEST(ModulesTest, FunctorchsGradOverVmap) {
  expect_unchanged([] {
    auto weight = at::randn({20, 30});
    auto x = at::randn({12, 30});
    at::Tensor per_example;
    {
      Level vmap(
          functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap, 12, functorch::RandomnessType::Error));
      auto v = functorch::makeBatched(x, 0, vmap.level);
      Level grad(functorch::initAndPushDynamicLayer(functorch::TransformType::Grad, std::nullopt, std::nullopt, true));
      functorch::setInplaceRequiresGradAllowed(true);
      auto w = functorch::makeTensorWrapper(weight, grad.level).requires_grad_();
      functorch::setInplaceRequiresGradAllowed(false);
      auto loss = at::tanh(w.matmul(functorch::makeTensorWrapper(v, grad.level))).square().sum();
      auto g = torch::autograd::grad({loss}, {w}, {}, true, false)[0];
      auto inner = functorch::maybeGetTensorWrapper(g)->value();
      per_example = functorch::maybeGetBatchedImpl(inner)->value();
    }
    EXPECT_EQ(per_example.sizes(), (c10::IntArrayRef{12, 20, 30}));
    return Tensors{per_example.clone()};
  });
}

TEST(ModulesTest, TorchScript) {
  static auto unit = torch::jit::compile(R"(
    def part(x, w):
      y = torch.relu(x @ w)
      for i in range(3):
        y = y + torch.tanh(y) * i
      return y.sum(1)
  )");
  expect_unchanged([] {
    auto x = at::randn({40, 30});
    auto w = at::randn({30, 20}).requires_grad_();
    at::Tensor y;
    for (int i = 0; i < 4; ++i) y = unit->run_method("part", x, w).toTensor();  // profiled, then optimized
    y.sum().backward();
    return Tensors{y.detach(), w.grad()};
  });
}

TEST(ModulesTest, TracedGraphs) {
  expect_unchanged([] {
    auto net = nn::Sequential(nn::Linear(50, 50), nn::ReLU(), nn::Linear(50, 20));
    for (auto& p : net->parameters()) p.requires_grad_(false);  // constants of the graph
    auto traced = torch::jit::tracer::trace(
        {at::randn({3, 50})},
        [&](torch::jit::Stack inputs) { return torch::jit::Stack{net->forward(inputs[0].toTensor())}; },
        [](const at::Tensor&) { return std::string(); }, false, false);
    torch::jit::GraphExecutor executor(traced.first->graph, "traced");
    auto x = at::randn({3, 50});
    Tensors result;
    for (int i = 0; i < 3; ++i) {
      torch::jit::Stack stack{x + i};
      executor.run(stack);
      result.push_back(stack.back().toTensor().detach());
    }
    return result;
  });
}

/// A data set of rows of one large tensor, which workers slice.
struct Slices : torch::data::Dataset<Slices> {
  explicit Slices(at::Tensor all) : all(std::move(all)) {}
  torch::data::Example<> get(size_t index) override {
    auto row = all[static_cast<int64_t>(index)];
    return {row * 2, row.sum()};
  }
  std::optional<size_t> size() const override { return all.size(0); }
  at::Tensor all;
};

Tensors load(const at::Tensor& all, size_t workers) {
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Slices(all).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(8).workers(workers).enforce_ordering(true));
  Tensors batches;
  for (auto& batch : *loader) batches.push_back(batch.data + batch.target.unsqueeze(1));
  return batches;
}

TEST(ModulesTest, DataLoadersOnTheSessionsThread) {
  expect_unchanged([] { return load(at::randn({40, 100}), 0); });
}

TEST(ModulesTest, DataLoaderThreadsWithOwnDataFeedASession) {
  const auto all = at::randn({40, 100});  // no operator of the Session touches it
  const Tensors plain = load(all, 2);
  Tensors paged;
  {
    Session session(evicting_everything());
    paged = load(all, 2);
  }
  testing::expect_equal_tensors(plain, paged, "fed by threads");
}

TEST(ModulesTest, DataLoaderThreadsThatTouchAbsentTensorsGetTheClearError) {
  Session session(evicting_everything());
  auto all = at::randn({40, 100}) + 1;
  try {
    load(all, 2);
    FAIL() << "read what is absent";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("Session::enter"), std::string::npos) << error.what();
  }
}

/// A Slices data set that opens the gate on the worker that asks.
struct EnteringSlices : torch::data::Dataset<EnteringSlices> {
  EnteringSlices(Session& session, at::Tensor all) : session(session), slices(std::move(all)) {}
  torch::data::Example<> get(size_t index) override {
    auto entry = session.enter();
    return slices.get(index);
  }
  std::optional<size_t> size() const override { return slices.size(); }
  Session& session;
  Slices slices;
};

TEST(ModulesTest, DataLoaderThreadsThatEnterTheSessionMayTouchAbsentTensors) {
  at::manual_seed(0);
  const Tensors plain = load(at::randn({40, 100}) + 1, 0);
  at::manual_seed(0);
  Tensors paged;
  {
    Session session(evicting_everything());
    // The loader takes a sample at a time, because stacking happens outside get().
    auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        EnteringSlices(session, at::randn({40, 100}) + 1),
        torch::data::DataLoaderOptions().batch_size(8).workers(2).enforce_ordering(true));
    for (auto& examples : *loader) {
      Tensors data, target;
      for (auto& example : examples) {
        data.push_back(example.data);
        target.push_back(example.target);
      }
      paged.push_back(at::stack(data) + at::stack(target).unsqueeze(1));
    }
  }
  testing::expect_equal_tensors(plain, paged, "entered");
}

}  // namespace
}  // namespace spillway
