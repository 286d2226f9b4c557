// Tests that K-FAC never waits for the device except in decompositions.
#include "tests/support/host_syncs.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <string>

#include "kfac/kfac.h"

namespace spillway {
namespace {
namespace nn = torch::nn;

struct Way {
  const char* name;
  kfac::KfacOptions options;
};
class HostSyncsTest : public ::testing::TestWithParam<Way> {};

TEST_P(HostSyncsTest, ComeFromDecompositionsAlone) {
  const auto syncs = std::make_shared<testing::HostSyncs>();
  Session session(SessionOptions{.observer = syncs});
  nn::Sequential model(nn::Conv3d(nn::Conv3dOptions(2, 4, 3).padding(1)), nn::ReLU(),
                       nn::Conv3d(nn::Conv3dOptions(4, 4, 3).stride(2)), nn::Flatten(), nn::Linear(108, 3));
  auto options = GetParam().options;
  options.burn_in = 0;
  options.factor_interval = 2;
  options.inverse_interval = 4;
  kfac::Kfac kfac(*model, options);
  std::map<std::string, int64_t> counts;
  for (int step = 0; step < 8; ++step) {
    const std::string kind(kfac.work().kind);
    const auto loss = model->forward(at::randn({2, 2, 8, 8, 8})).square().mean();
    syncs->count = 0;
    kfac.watch(loss, 2);
    loss.backward();
    kfac.step(4);
    counts[kind] += syncs->count;
    model->zero_grad();
  }
  EXPECT_EQ(counts.at("plain"), 0);
  EXPECT_EQ(counts.at("factor"), 0);
  const int64_t in_decompositions = counts.at("factor+decompose");
  if (options.method == kfac::Method::eigen)
    EXPECT_GT(in_decompositions, 0) << "the counter counts";
  else
    EXPECT_EQ(in_decompositions, 0) << "Cholesky's failures are counted on the device";
}

INSTANTIATE_TEST_SUITE_P(
    Ways, HostSyncsTest,
    ::testing::Values(Way{"full", {.conv_factors = kfac::ConvFactors::full}},
                      Way{"separable", {.conv_factors = kfac::ConvFactors::separable}},
                      Way{"block", {.conv_factors = kfac::ConvFactors::block, .max_factor_dim = 54}},
                      Way{"pi", {.method = kfac::Method::pi}},
                      Way{"outer_kept_in_fp16", {.precompute_outer = true, .storage = kfac::FactorDtype::fp16}},
                      Way{"kaisa", {.convention = kfac::Convention::kaisa}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace spillway
