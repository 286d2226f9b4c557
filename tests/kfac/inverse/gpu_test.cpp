// Tests of K-FAC's parts on a CUDA GPU. They are skipped, and counted, where there is no GPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/utils.h>

#include <optional>
#include <vector>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "kfac/kfac.h"
#include "tests/kfac/inverse/eigh_conformance.h"
#include "tests/kfac/inverse/subspace_conformance.h"

namespace spillway::kfac::testing {

struct Gpu {
  static std::optional<at::Device> device() {
    try {
      (void)open_device("cuda");
      return at::Device(at::kCUDA, 0);
    } catch (const DeviceError&) {
      return std::nullopt;
    }
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, EighConformanceTest, Gpu);
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, SubspaceConformanceTest, Gpu);

/// Returns the preconditioned gradients of a model of equal layers on a GPU.
std::vector<at::Tensor> gradients_on_gpu(std::optional<int64_t> batch_elements) {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  const auto conv = [](int64_t in) { return nn::Conv2d(nn::Conv2dOptions(in, 16, 3).padding(1)); };
  nn::Sequential model(conv(4), nn::Tanh(), conv(16), nn::Tanh(), conv(16), nn::Tanh(), conv(16));
  model->to(*Gpu::device());
  Kfac kfac(*model, {.eigen_rank = EigenRank::of(4), .batch_elements = batch_elements});
  const auto x = at::randn({8, 4, 12, 12}).to(*Gpu::device());
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto loss = model->forward(x).square().mean();
    kfac.watch(loss, x.size(0));
    loss.backward();
    kfac.step();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) gradients.push_back(parameter.grad().cpu());
  return gradients;
}

TEST(LayerBatchesOnGpuTest, GiveTheGradientsOfLayersByThemselves) {
  if (!Gpu::device()) GTEST_SKIP() << "there is no such device";
  const auto alone = gradients_on_gpu(0), together = gradients_on_gpu({});
  for (size_t i = 0; i < alone.size(); ++i)
    EXPECT_LT((together[i] - alone[i]).norm().item<double>(), 1e-3 * alone[i].norm().item<double>()) << i;
}

}  // namespace spillway::kfac::testing

namespace spillway::kfac {

// Runs wherever CUDA's libraries are, with or without a driver.
TEST(EighOperatorTest, HasItsKernelForGpusOnceTheLibraryIsLoaded) {
  if (!SPILLWAY_CUSOLVER_IS_THERE) GTEST_SKIP() << "there is no cuSOLVER beside LibTorch";
  if (!dlopen("libspillway_cuda.so", RTLD_NOW)) GTEST_SKIP() << dlerror();
  const auto eigh = c10::Dispatcher::singleton().findSchemaOrThrow("spillway::eigh", "");
  EXPECT_TRUE(eigh.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
}

}  // namespace spillway::kfac
