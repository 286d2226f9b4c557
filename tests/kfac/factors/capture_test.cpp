#include "kfac/factors/capture.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

struct Seen {
  size_t layer;
  at::Tensor input, gradient;
};

std::vector<Seen> seen_in_backward(const at::Tensor& loss, const std::vector<at::Tensor>& weights) {
  WeightIndex index;
  for (size_t i = 0; i < weights.size(); ++i) index[weights[i].unsafeGetTensorImpl()] = i;
  std::vector<Seen> seen;
  install_capture_hooks(loss, index, [&](const Captured& c) {
    seen.push_back({c.layer, c.input.clone(), c.gradient.clone()});
  });
  loss.backward();
  return seen;
}

// Expects that the one use of `linear` in Σ y² shows x and 2y as rows, whatever the leading dimensions.
void expect_rows(nn::Linear linear, const at::Tensor& x) {
  const auto y = linear->forward(x);
  const auto seen = seen_in_backward(y.pow(2).sum(), {linear->weight});
  ASSERT_EQ(seen.size(), 1u) << x.sizes();
  EXPECT_TRUE(seen[0].input.equal(x.reshape({-1, x.size(-1)})));
  EXPECT_TRUE(at::allclose(seen[0].gradient, (2 * y).reshape({-1, y.size(-1)})));
}

}  // namespace

TEST(CaptureTest, ShowsLinearInputsWithAnyLeadingDimensions) {
  for (bool bias : {true, false}) {
    nn::Linear linear(nn::LinearOptions(3, 2).bias(bias));
    expect_rows(linear, at::randn({3}));
    expect_rows(linear, at::randn({4, 3}));
    expect_rows(linear, at::randn({2, 4, 3}));
    expect_rows(linear, at::randn({2, 2, 4, 3}));
    expect_rows(linear, at::randn({4, 2, 3}).transpose(0, 1));
    expect_rows(linear, at::randn({2, 3, 4}).transpose(1, 2));
    expect_rows(linear, at::randn({1, 1, 3}).expand({2, 4, 3}));
    expect_rows(linear, at::randn({2, 4, 3}).requires_grad_());
  }
}

TEST(CaptureTest, ShowsEveryUseOfAReusedLayer) {
  nn::Linear linear(3, 3);
  const auto y = linear->forward(linear->forward(at::randn({4, 3})).relu());
  EXPECT_EQ(seen_in_backward(y.sum(), {linear->weight}).size(), 2u);
}

TEST(CaptureTest, SeesThroughInPlaceActivations) {
  nn::Conv2d conv(2, 3, 3);
  const auto x = at::randn({2, 2, 5, 5});
  auto y = conv->forward(x);
  const auto seen = seen_in_backward(torch::relu_(y).sum(), {conv->weight});
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(seen[0].input.equal(x));
}

TEST(CaptureTest, SeesThroughCastWeights) {
  nn::Linear linear(3, 2);
  const auto x = at::randn({4, 3}, at::kDouble);
  const auto y = at::linear(x, linear->weight.to(at::kDouble), linear->bias.to(at::kDouble));
  const auto seen = seen_in_backward(y.sum(), {linear->weight});
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].input.scalar_type(), at::kDouble);
}

/// Checks a square weight, because its sizes do not tell whether a product uses it transposed.
TEST(CaptureTest, LeavesOutProductsWithTheWeightTheOtherWayRound) {
  nn::Linear linear(nn::LinearOptions(3, 3).bias(false));
  const at::Tensor& w = linear->weight;
  for (const auto& x : {at::randn({4, 3}), at::randn({2, 4, 3})}) {
    for (const auto& y : {at::matmul(x, w), at::linear(x, w.t()), at::matmul(x, w.t().t()),
                          at::matmul(x, w.permute({0, 1})), at::linear(x, w.transpose(0, 1))})
      EXPECT_EQ(seen_in_backward(y.sum(), {w}).size(), 0u) << x.sizes();
    for (const auto& y : {at::matmul(x, w.t()), at::linear(x, w), at::matmul(x, w.permute({1, 0})),
                          at::matmul(x, w.transpose(-1, -2)), at::linear(x, w.t().t())})
      EXPECT_EQ(seen_in_backward(y.sum(), {w}).size(), 1u) << x.sizes();
  }
}

TEST(CaptureTest, ShowsAnUnbatchedConvolutionAsABatchOfOne) {
  nn::Conv1d conv(2, 3, 3);
  const auto seen = seen_in_backward(conv->forward(at::randn({2, 7})).sum(), {conv->weight});
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].input.sizes(), (std::vector<int64_t>{1, 2, 7}));
  EXPECT_EQ(seen[0].gradient.sizes(), (std::vector<int64_t>{1, 3, 5}));
}

TEST(CaptureTest, IgnoresWeightsThatAreNotAskedForOrAreComputed) {
  nn::Linear asked(3, 3), other(3, 3);
  const auto x = at::randn({2, 3});
  EXPECT_EQ(seen_in_backward(other->forward(x).sum(), {asked->weight}).size(), 0u);
  EXPECT_EQ(seen_in_backward(at::linear(x, asked->weight.tanh()).sum(), {asked->weight}).size(), 0u);
  nn::ConvTranspose2d up(3, 3, 2);
  EXPECT_EQ(seen_in_backward(up->forward(at::randn({1, 3, 4, 4})).sum(), {up->weight}).size(), 0u);
}

TEST(CaptureTest, DoesNotChangeTheGradients) {
  nn::Sequential model(nn::Conv2d(2, 3, 3), nn::ReLU(), nn::Flatten(), nn::Linear(27, 2));
  const auto x = at::randn({2, 2, 5, 5});
  model->forward(x).pow(2).sum().backward();
  const auto plain = model->parameters()[0].grad().clone();
  model->zero_grad();
  const auto loss = model->forward(x).pow(2).sum();
  EXPECT_EQ(seen_in_backward(loss, {model->parameters()[0], model->parameters()[2]}).size(), 2u);
  EXPECT_TRUE(model->parameters()[0].grad().equal(plain));
}

/// Hooks of a saved tensor that give it back once in a backward, as those of checkpoints do.
struct GivesBackOnce : torch::autograd::SavedVariableHooks {
  explicit GivesBackOnce(int& unpacked) : unpacked(unpacked) {}
  void call_pack_hook(const at::Tensor& tensor) override { kept = tensor; }
  at::Tensor call_unpack_hook() override {
    ++unpacked;
    return kept;
  }
  int& unpacked;
  at::Tensor kept;
};

TEST(CaptureTest, UnpacksAnInputWithHooksOnceInEachBackward) {
  nn::Linear linear(3, 2);
  const auto x = at::randn({4, 3});
  const auto loss = linear->forward(x).pow(2).sum();
  auto* pow = loss.grad_fn()->next_edge(0).function.get();
  auto* addmm = dynamic_cast<torch::autograd::generated::AddmmBackward0*>(pow->next_edge(0).function.get());
  ASSERT_TRUE(addmm);
  int unpacked = 0;
  addmm->mat1_.register_hooks(std::make_unique<GivesBackOnce>(unpacked));
  int seen = 0;
  install_capture_hooks(loss, {{linear->weight.unsafeGetTensorImpl(), 0}}, [&](const Captured& c) {
    ++seen;
    EXPECT_TRUE(c.input.equal(x));
  });
  EXPECT_EQ(unpacked, 0);
  for (int backward = 1; backward <= 3; ++backward) {
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(unpacked, backward);
    EXPECT_EQ(seen, backward);
  }
}

TEST(CaptureTest, AddsOneHookOfAnOwnerToAnOperator) {
  nn::Linear linear(3, 3);
  const auto hidden = linear->forward(at::randn({4, 3})), output = linear->forward(hidden);
  int seen = 0;
  const auto count = [&](const Captured&) { ++seen; };
  const WeightIndex weights{{linear->weight.unsafeGetTensorImpl(), 0}};
  const int owner = 0, other = 0;
  EXPECT_EQ(install_capture_hooks(hidden, weights, count, {.owner = &owner}).uses.at(0), 1);
  EXPECT_EQ(install_capture_hooks(output, weights, count, {.owner = &owner}).uses.at(0), 2);
  output.sum().backward({}, /*retain_graph=*/true);
  EXPECT_EQ(seen, 2);
  install_capture_hooks(output, weights, count, {.owner = &other});
  output.sum().backward();
  EXPECT_EQ(seen, 6);
}

struct Opaque : torch::autograd::Function<Opaque> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, const at::Tensor& w) {
    return at::linear(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    return {at::Tensor(), at::Tensor()};
  }
};

TEST(CaptureTest, TellsOfWeightsThatOtherNodesTakeAndOfOpaqueOnes) {
  nn::Linear first(3, 3), second(3, 3), third(3, 3);
  WeightIndex weights;
  for (const auto& linear : {first, second, third}) weights[linear->weight.unsafeGetTensorImpl()] = weights.size();
  const auto x = at::matmul(first->forward(at::randn({2, 3})), second->weight);
  size_t met_opaque = 0;
  const CaptureManner manner{.meet_opaque = [&](torch::autograd::Node&) { ++met_opaque; }};
  const auto plain = install_capture_hooks(
      x, weights, [](const Captured&) {}, manner);
  EXPECT_EQ(plain.uses.size(), 1u);
  EXPECT_EQ(plain.taken_by.at(weights.at(second->weight.unsafeGetTensorImpl())), "MmBackward0");
  EXPECT_TRUE(plain.opaque.empty());
  const auto custom = install_capture_hooks(
      Opaque::apply(x, third->weight), weights, [](const Captured&) {}, manner);
  EXPECT_EQ(met_opaque, 1u);
  EXPECT_FALSE(custom.opaque.empty());
  EXPECT_EQ(custom.taken_by.at(weights.at(third->weight.unsafeGetTensorImpl())), custom.opaque);
}

TEST(CaptureTest, RefusesALossWithoutAGraph) {
  EXPECT_THROW(install_capture_hooks(at::zeros({}), {}, {}), c10::Error);
}

}  // namespace spillway::kfac
