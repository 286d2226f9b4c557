// Tests that the other ways to save memory compute the same results, because only then can Spillway be compared with
// them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "benchmarks/commands/saved_on_host.h"
#include "runtime/models/unet3d.h"

namespace spillway {
using namespace runtime;
using tools::HostCopies;
using tools::SavedOnHost;
namespace {

std::vector<at::Tensor> gradients(bool recompute, bool save_on_host) {
  at::manual_seed(5);
  UNet3d net(UNet3dOptions{.in_channels = 1, .classes = 2, .filters = 2, .depth = 3, .recompute = recompute});
  const at::Tensor input = at::randn({2, 1, 8, 8, 8});
  std::optional<SavedOnHost> saved;
  if (save_on_host) saved.emplace(HostCopies::blocking);
  net->forward(input).square().mean().backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad());
  all.push_back(at::rand({4}));  // equal when the generators drew equally often
  return all;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "tensor " << i;
}

TEST(MemorySaversTest, RecomputingLevelsGivesTheSameGradientsAndRandomNumbers) {
  expect_equal(gradients(true, false), gradients(false, false));
}

TEST(MemorySaversTest, SavingOnTheHostGivesTheSameGradients) {
  expect_equal(gradients(false, true), gradients(false, false));
}

TEST(MemorySaversTest, TogetherTheyDoToo) {
  expect_equal(gradients(true, true), gradients(false, false));
}

}  // namespace
}  // namespace spillway
