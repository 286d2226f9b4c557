#include "runtime/passes/autocast.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/utils.h>

#include <limits>

#include "core/error.h"
#include "runtime/models/convolve.h"

namespace spillway {
using namespace runtime;
namespace {

at::ScalarType type_of_product() {
  return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

/// Fills free memory with NaN, so that the next allocations contain it.
void poison_free_memory() {
  std::vector<at::Tensor> junk;
  for (int64_t n = 16; n <= 1 << 20; n *= 2)
    for (int i = 0; i < 3; ++i) junk.push_back(at::full({n}, std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace

TEST(AutocastTest, ProductsAreBfloat16InsideAndFloat32Outside) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  {
    Autocast autocast(Amp::bf16);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    {
      Autocast off(Amp::off);
      EXPECT_EQ(type_of_product(), at::kFloat);
    }
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
}

TEST(AutocastTest, ProductsAreFloat16WhereThatIsAskedFor) {
  Autocast autocast(Amp::fp16);
  EXPECT_EQ(type_of_product(), at::kHalf);
  Autocast inner(Amp::bf16);
  EXPECT_EQ(type_of_product(), at::kBFloat16);
}

TEST(AutocastTest, AWeightThatChangedIsCastAnew) {
  auto weight = at::ones({1, 1}).requires_grad_();
  auto forward = [&] {
    Autocast autocast(Amp::bf16);
    return at::linear(at::ones({1, 1}), weight).item<double>();
  };
  EXPECT_EQ(forward(), 1);
  {
    at::NoGradGuard no_grad;
    weight.fill_(3);
  }
  EXPECT_EQ(forward(), 3);
}

TEST(AutocastTest, NamesTheAllowedTypes) {
  EXPECT_THROW(parse_amp("float8"), BadRequest);
  EXPECT_FALSE(at::matmul(at::ones({1, 1}), at::ones({1, 1})).scalar_type() == at::kBFloat16);
}

TEST(Convolve3dTest, GradientsOfVolumesTwoVoxelsDeepAreTheSameEveryTime) {
  torch::manual_seed(1);
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(16, 16, 3).padding(1));
  auto x = at::randn({2, 16, 2, 6, 6});
  at::Tensor first;
  for (int i = 0; i < 10; ++i) {
    at::Tensor loss;
    {
      Autocast autocast(Amp::bf16);
      loss = convolve(conv, x).to(at::kFloat).square().sum();
    }
    poison_free_memory();
    loss.backward();
    const at::Tensor gradient = conv->weight.grad().clone();
    if (i == 0) first = gradient;
    EXPECT_TRUE(at::equal(gradient, first)) << i;
    conv->zero_grad();
  }
}

TEST(Convolve3dTest, ComputesInBfloat16WhereThatWorks) {
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(2, 3, 3).padding(1));
  auto type = [&](int64_t depth) { return convolve(conv, at::ones({1, 2, depth, 4, 4})).scalar_type(); };
  EXPECT_EQ(type(4), at::kFloat);
  Autocast autocast(Amp::bf16);
  EXPECT_EQ(type(4), at::kBFloat16);
  EXPECT_EQ(type(2), at::kFloat);
}

}  // namespace spillway
