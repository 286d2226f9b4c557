#include "runtime/passes/split_backward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/passes/recompute.h"

namespace spillway::runtime {
namespace {

/// Leaves, by number, of which the first one is the input, and a graph over them.
struct Case {
  std::string name;
  std::vector<at::Tensor> leaves;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> loss;
  int64_t waiting = 0;  // weights whose gradients can wait
};

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

at::Tensor sum_of_squares(const at::Tensor& t) {
  return (t * t).sum();
}

std::vector<Case> cases_of_layers() {
  return {
      {"two layers of an input with gradient",
       {leaf({4, 5}), leaf({6, 5}), leaf({6}), leaf({3, 6}), leaf({3})},
       [](const auto& l) { return sum_of_squares(at::linear(at::relu(at::linear(l[0], l[1], l[2])), l[3], l[4])); },
       2},
      {"a first layer without bias, of an input without gradient",
       {at::randn({4, 5}, at::kDouble), leaf({6, 5}), leaf({3, 6})},
       [](const auto& l) { return sum_of_squares(at::linear(at::relu(at::linear(l[0], l[1])), l[2])); },
       1},
      {"a first layer with a bias, of an input without gradient",
       {at::randn({4, 5}, at::kDouble), leaf({6, 5}), leaf({6})},
       [](const auto& l) { return sum_of_squares(at::linear(l[0], l[1], l[2])); },
       1},
      {"rows of words",
       {leaf({2, 4, 5}), leaf({6, 5}), leaf({6})},
       [](const auto& l) { return sum_of_squares(at::linear(l[0], l[1], l[2])); },
       1},
      {"convolutions",
       {leaf({2, 3, 6, 6, 6}), leaf({4, 3, 3, 3, 3}), leaf({4}), leaf({2, 4, 3, 3, 3})},
       [](const auto& l) {
         return sum_of_squares(at::conv3d(at::relu(at::conv3d(l[0], l[1], l[2], 1, 1)), l[3], {}, 2));
       },
       2},
  };
}

std::vector<Case> cases_of_other_uses() {
  return {
      {"a weight that two operators read",
       {leaf({4, 5}), leaf({5, 5}), leaf({5, 5})},
       [](const auto& l) { return sum_of_squares(at::linear(at::linear(at::linear(l[0], l[1]), l[2]), l[1])); },
       1},
      {"normalization and a table of words",
       {at::randint(7, {2, 3}, at::kLong), leaf({7, 4}), leaf({4}), leaf({4}), leaf({5, 4}), leaf({5})},
       [](const auto& l) {
         const at::Tensor words = at::embedding(l[1], l[0]);
         return sum_of_squares(at::linear(at::layer_norm(words, {4}, l[2], l[3]), l[4], l[5]));
       },
       2},
      {"a weight that was cast",
       {leaf({4, 5}), leaf({6, 5}).detach().to(at::kFloat).requires_grad_()},
       [](const auto& l) { return sum_of_squares(at::linear(l[0], l[1].to(at::kDouble))); },
       1},
      {"a block that runs again",
       {leaf({4, 5}), leaf({5, 5}), leaf({5, 5})},
       [](const auto& l) {
         auto block = [w = l[1]](const auto& in) { return at::relu(at::linear(in[0], w)); };
         return sum_of_squares(at::linear(recomputed(block, {l[0]}), l[2]));
       },
       1},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = cases_of_layers();
  for (Case& other : cases_of_other_uses()) all.push_back(std::move(other));
  return all;
}

std::vector<at::Tensor> gradients_of(const Case& given) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& leaf : given.leaves) all.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::Tensor());
  for (const at::Tensor& leaf : given.leaves) leaf.mutable_grad().reset();
  return all;
}

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.equal(b));
}

TEST(SplitBackwardTest, BothPartsTogetherAreAWholeBackwardBitForBit) {
  at::manual_seed(1);
  for (const Case& given : cases()) {
    for (int pass = 0; pass < 2; ++pass) given.loss(given.leaves).backward();
    const auto expected = gradients_of(given);
    for (int pass = 0; pass < 2; ++pass) {
      SplitBackward split({given.loss(given.leaves)}, given.leaves.front());
      EXPECT_EQ(split.waiting(), given.waiting) << given.name;
      split.run_inputs({at::Tensor()});
      split.run_weights();
    }
    const auto gradients = gradients_of(given);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(is_same(gradients[i], expected[i])) << given.name << ", " << i;
  }
}

TEST(SplitBackwardTest, TheFirstPartLeavesTheWeightsThatWait) {
  at::manual_seed(2);
  const at::Tensor input = leaf({4, 5}), weight = leaf({6, 5}), bias = leaf({6});
  SplitBackward split({sum_of_squares(at::linear(input, weight, bias))}, input);
  split.run_inputs({at::Tensor()});
  EXPECT_TRUE(input.grad().defined());
  EXPECT_TRUE(bias.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
  split.run_weights();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(SplitBackwardTest, SeveralRootsWithTheirGradients) {
  at::manual_seed(3);
  const at::Tensor input = leaf({4, 5}), first = leaf({5, 5}), second = leaf({5, 5});
  const auto run = [&](bool splits) {
    const at::Tensor a = at::linear(input, first), b = at::linear(a, second);
    const at::Tensor of_a = at::full_like(a, 0.5), of_b = at::full_like(b, -2);
    if (splits) {
      SplitBackward split({a, b}, input);
      split.run_inputs({of_a, of_b});
      split.run_weights();
    } else {
      torch::autograd::backward({a, b}, {of_a, of_b});
    }
    std::vector<at::Tensor> all;
    for (const at::Tensor& leaf : {input, first, second}) {
      all.push_back(leaf.grad().clone());
      leaf.mutable_grad().reset();
    }
    return all;
  };
  const auto expected = run(false), split = run(true);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(split[i].equal(expected[i])) << i;
}

TEST(SplitBackwardTest, OnlyWhatTheSecondPartReadsIsKept) {
  const at::Tensor input = leaf({4, 5}), weight = leaf({6, 5}), bias = leaf({6});
  const at::Tensor activation = at::linear(input, weight, bias);
  const auto before = activation.use_count();
  at::Tensor result = activation.sigmoid().exp();
  const at::Tensor saved = result;  // by exp's backward
  const auto held = saved.use_count();
  SplitBackward split({result.sum()}, input);
  result.reset();
  split.run_inputs({at::Tensor()});
  EXPECT_LT(saved.use_count(), held);
  EXPECT_EQ(activation.use_count(), before);
  split.run_weights();
}

TEST(SplitBackwardTest, AGraphIsNeeded) {
  EXPECT_THROW(SplitBackward({at::ones({1})}, {}), c10::Error);
}

}  // namespace
}  // namespace spillway::runtime
