// Tests of a Session on a GPU whose driver is a double, with operators that the test registers for CUDA.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>

#include "core/device/open_device.h"
#include "core/memory/fork.h"
#include "swap/gate/device_pager.h"
#include "swap/gate/storage_page.h"
#include "swap/session.h"
#include "tests/support/fake_cuda.h"

namespace spillway {
using namespace swap;
namespace {

constexpr int64_t kElements = 1 << 16;

/// Adds one to a tensor in place. It takes no memory.
void increment(const at::Tensor& tensor) {
  auto* elements = static_cast<float*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) elements[i] += 1;
}
TORCH_LIBRARY(fake_gpu, library) {
  library.def("increment(Tensor(a!) tensor) -> ()");
}
TORCH_LIBRARY_IMPL(fake_gpu, CUDA, library) {
  library.impl("increment", increment);
}
void call_increment(const at::Tensor& tensor) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("fake_gpu::increment", "").typed<void(const at::Tensor&)>();
  op.call(tensor);
}

/// Loads the doubles under the names that Spillway looks for, and returns the double of the driver.
testing::FakeCudaDriver& load_doubles() {
  static void* library = [] {
    void* driver = ::dlopen(FAKE_NVIDIA_DRIVER, RTLD_NOW | RTLD_LOCAL);
    void* cuda = ::dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!driver || !cuda) throw std::runtime_error(::dlerror());
    return cuda;
  }();
  open_device("cuda");
  return *reinterpret_cast<testing::FakeCudaDriver* (*)()>(::dlsym(library, "fake_cuda_driver"))();
}

class FakeGpuTest : public ::testing::Test {
 protected:
  void TearDown() override { driver.on_other_stream = false; }

  /// Makes a tensor of zeros on the GPU, whose storage is a page.
  at::Tensor make_zeros(Session& session) {
    Device& device = open_device("cuda");
    Block* block = device.memory().allocate(kElements * 4, Category::activations);
    std::memset(block->data, 0, kElements * 4);
    const std::array<int64_t, 1> sizes{kElements}, strides{1};
    return make_paged_tensor(device, session.pager(), block, Category::activations, kNobody,
                             {sizes, strides, at::kFloat});
  }
  static float first_of(const at::Tensor& tensor) {
    const Resident loan = resident_read(tensor);
    return *static_cast<const float*>(tensor.const_data_ptr());
  }

  testing::FakeCudaDriver& driver = load_doubles();
};

TEST_F(FakeGpuTest, OperatorsRunOnPagesThatComeBack) {
  Session session({.device = "cuda", .small_page_bytes = 0});
  const at::Tensor tensor = make_zeros(session);
  call_increment(tensor);
  session.pager().evict_all();
  call_increment(tensor);
  EXPECT_EQ(first_of(tensor), 2);
}

TEST_F(FakeGpuTest, AnOperatorInPlaceOnAnotherStreamIsRefused) {
  Session session({.device = "cuda"});
  const at::Tensor tensor = make_zeros(session);
  driver.on_other_stream = true;
  EXPECT_THROW(call_increment(tensor), std::runtime_error);
  EXPECT_EQ(at::ones({3}).add(1).sum().item<float>(), 6) << "the host's operators have no stream";
  driver.on_other_stream = false;
  EXPECT_EQ(first_of(tensor), 0);
  call_increment(tensor);
  EXPECT_EQ(first_of(tensor), 1);
}

/// Runs `work` in a child, and returns how the child ended. A child that hangs is killed.
int status_of_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int code = 99;
    try {
      code = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(FakeGpuTest, InAChildOfForkTheGateIsOffAndTheGpuIsNotAsked) {
  Session session({.device = "cuda"});
  const at::Tensor tensor = make_zeros(session);
  call_increment(tensor);
  const int64_t looks = driver.looks, asked = driver.asked;
  int status = 0;
  {
    const std::unique_lock turn(DevicePager::current()->turns);  // as another thread of the parent may have it
    status = status_of_child([&] {
      if (!forked_while_paging()) return 1;
      if (at::ones({1000}).add(1).sum().item<float>() != 2000) return 2;  // what a DataLoader's worker does
      call_increment(tensor);
      return driver.looks == looks && driver.asked == asked ? 0 : 3;
    });
  }
  EXPECT_EQ(status, 0);
  call_increment(tensor);
  EXPECT_EQ(first_of(tensor), 2) << "the parent goes on";
}

}  // namespace
}  // namespace spillway
