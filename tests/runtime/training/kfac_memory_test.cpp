// Tests that the bytes that K-FAC reports as held are those that the device's ledger counts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "core/device/cpu_device.h"
#include "core/memory/device_memory.h"
#include "kfac/kfac.h"

namespace spillway {
namespace {

namespace nn = torch::nn;

/// Returns the bytes of `category` that the ledger counts beyond `before`.
int64_t counted(Category category, const BytesByCategory& before) {
  const auto place = static_cast<size_t>(category);
  return CpuDevice::instance().ledger().used_by_category()[place] - before[place];
}

/// Returns tensors as large as the scales that are held of a layer.
std::vector<at::Tensor> scales_of(const kfac::LayerShape& shape) {
  std::vector<at::Tensor> all;
  for (const kfac::HeldTensor& tensor : kfac::scale_tensors(shape))
    all.push_back(at::empty(tensor.sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)));
  return all;
}

struct KfacMemoryTest : ::testing::TestWithParam<kfac::KfacOptions> {};

TEST_P(KfacMemoryTest, EqualsTheLedgerCategoryByCategory) {
  CpuDevice::instance();
  nn::Sequential model(nn::Conv3d(nn::Conv3dOptions(2, 4, 3).padding(1)), nn::ReLU(), nn::Conv3d(4, 3, 3));
  const auto before = CpuDevice::instance().ledger().used_by_category();
  auto options = GetParam();
  options.factor_interval = options.inverse_interval = 1;
  kfac::Kfac kfac(*model, options);
  const auto check = [&](const char* when) {
    int64_t factors = 0, factor_charges = 0, eigenbases = 0, eigenbasis_charges = 0, scales = 0, scale_charges = 0;
    const auto add = [](const std::vector<at::Tensor>& tensors, int64_t& bytes, int64_t& charges) {
      for (const auto& tensor : tensors) {
        bytes += static_cast<int64_t>(tensor.nbytes());
        charges += DeviceMemory::charge_of(static_cast<int64_t>(tensor.nbytes()));
      }
    };
    for (size_t i = 0; i < kfac.layers().size(); ++i) {
      add(kfac.state().held_factors(i), factors, factor_charges);
      add(kfac.state().inverse(i), eigenbases, eigenbasis_charges);
      add(scales_of(kfac.layers()[i].shape), scales, scale_charges);
    }
    EXPECT_EQ(kfac.usage().bytes.factors, factors) << when;
    EXPECT_EQ(kfac.usage().bytes.eigenbases, eigenbases) << when;
    EXPECT_EQ(counted(Category::factors, before), factor_charges) << when;
    EXPECT_EQ(kfac.usage().bytes.scales, scales) << when;
    EXPECT_EQ(counted(Category::eigenbases, before), eigenbasis_charges + scale_charges) << when;
  };
  check("at the start");
  for (int step = 0; step < 3; ++step) {
    {
      const auto loss = model->forward(at::randn({2, 2, 6, 6, 6})).square().mean();
      kfac.watch(loss, 2);
      loss.backward();
    }
    EXPECT_GT(kfac.usage().bytes.staged, 0);
    EXPECT_GE(counted(Category::factors, before), kfac.usage().bytes.factors + kfac.usage().bytes.staged);
    kfac.step();
    check("after a step");
    model->zero_grad();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, KfacMemoryTest,
    ::testing::Values(kfac::KfacOptions{}, kfac::KfacOptions{.conv_factors = kfac::ConvFactors::separable},
                      kfac::KfacOptions{.conv_factors = kfac::ConvFactors::block, .max_factor_dim = 60},
                      kfac::KfacOptions{.storage = kfac::FactorDtype::bf16},
                      kfac::KfacOptions{.method = kfac::Method::pi, .storage = kfac::FactorDtype::fp16},
                      kfac::KfacOptions{.method = kfac::Method::pi}, kfac::KfacOptions{.precompute_outer = true},
                      kfac::KfacOptions{.eigen_rank = kfac::EigenRank::of(8)}));

}  // namespace
}  // namespace spillway
