// Tests of K-FAC's parts on a CUDA GPU. They are skipped, and counted, where there is no GPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "tests/kfac/inverse/eigh_conformance.h"

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
