#include "swap/optim.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "core/cpu_allocator.h"
#include "swap/session.h"

namespace spillway {
namespace {

std::vector<at::Tensor> parameters() {
  at::manual_seed(1);
  std::vector<at::Tensor> tensors;
  for (int64_t n : {1000, 1, 70'000, 33, 5000}) tensors.push_back(at::randn({n}).requires_grad_());
  return tensors;
}

/// Some parameters have no gradient in some steps.
template <class Step>
std::vector<at::Tensor> run(std::vector<at::Tensor> parameters, Step step) {
  for (int i = 0; i < 5; ++i) {
    at::Tensor loss = at::zeros({});
    for (size_t p = 0; p < parameters.size(); ++p)
      if (!(p == 3 && i < 2)) loss = loss + (parameters[p] * (i + 1.0)).sin().sum();
    loss.backward();
    step();
    for (auto& p : parameters) p.mutable_grad().reset();
  }
  return parameters;
}

void expect_near(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-5, 1e-6)) << i;
}
void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(OptimTest, AdamAgreesWithLibTorchsAlsoWhenAParameterStartsLate) {
  auto own = parameters(), theirs = parameters();
  Adam adam(own, {.lr = 1e-2, .weight_decay = 0.1});
  torch::optim::Adam reference(theirs, torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  expect_near(run(own, [&] { adam.step(); }), run(theirs, [&] { reference.step(); }));
}

TEST(OptimTest, SgdAgreesWithLibTorchsAlsoWhenAParameterStartsLate) {
  auto own = parameters(), theirs = parameters();
  Sgd sgd(own, {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1});
  torch::optim::SGD reference(theirs, torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.1));
  expect_near(run(own, [&] { sgd.step(); }), run(theirs, [&] { reference.step(); }));
}

TEST(OptimTest, GroupingChangesNoBit) {
  auto adam = [&](int64_t group_bytes) {
    auto p = parameters();
    Adam optimizer(p, {.lr = 1e-2, .group_bytes = group_bytes});
    return run(p, [&] { optimizer.step(); });
  };
  auto sgd = [&](int64_t group_bytes) {
    auto p = parameters();
    Sgd optimizer(p, {.lr = 1e-2, .group_bytes = group_bytes});
    return run(p, [&] { optimizer.step(); });
  };
  for (int64_t bytes : {1, 20'000, 400'000}) {
    expect_equal(adam(bytes), adam(1 << 30));
    expect_equal(sgd(bytes), sgd(1 << 30));
  }
}

TEST(OptimTest, NeedsOnlyOneGroupResidentAtATime) {
  auto p = std::vector<at::Tensor>();
  for (int i = 0; i < 12; ++i) p.push_back(at::ones({1 << 16}).requires_grad_());
  for (auto& t : p) t.mutable_grad() = at::ones_like(t);
  const int64_t one = (1 << 18) * 4;  // a parameter, its gradient and two moments
  Session session({.budget_bytes = 3 * one, .small_page_bytes = 0});
  Adam adam(p, {.lr = 0.5, .group_bytes = one});
  adam.step();
  for (auto& t : p) EXPECT_NEAR(t[7].item<double>(), 0.5, 1e-5);
  EXPECT_LE(session.stats().peak_bytes, 3 * one);
}

TEST(OptimTest, CountsWeightsGradientsAndState) {
  CpuDevice& device = CpuDevice::instance();
  auto used = [&](Category category) { return device.ledger().used_by_category()[static_cast<size_t>(category)]; };
  const int64_t weights = used(Category::weights), gradients = used(Category::gradients),
                state = used(Category::optimizer);
  auto p = at::ones({1 << 16}).requires_grad_();
  Adam adam({p}, {});
  p.square().sum().backward();
  EXPECT_GE(used(Category::weights) - weights, 1 << 18);
  EXPECT_GE(used(Category::gradients) - gradients, 1 << 18);
  EXPECT_GE(used(Category::optimizer) - state, 1 << 19);
  adam.zero_grad();
  EXPECT_EQ(used(Category::gradients), gradients);
}

TEST(OptimTest, RefusesBadOptions) {
  EXPECT_THROW(Adam({at::ones({1}).requires_grad_()}, {.lr = 0}), c10::Error);
  EXPECT_THROW(Sgd({at::ones({1}).requires_grad_()}, {.momentum = 1}), c10::Error);
  EXPECT_THROW(Sgd({at::ones({1})}, {}), c10::Error);
}

}  // namespace
}  // namespace spillway
