// Tests of the bytes charged for a GPU's tensors, on a double of the GPU, and of the errors where there is no GPU.
#include "core/device/cuda_device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/device/borrowed_data.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "tests/support/fake_cuda.h"

namespace spillway {
namespace {

using testing::FakeCudaDriver;

/// A double of a GPU with its device. Every test has its own GPU, because LibTorch keeps devices for ever.
struct Gpu {
  explicit Gpu(int index, int64_t gpu_bytes = int64_t{1} << 30)
      : driver(*new FakeCudaDriver(gpu_bytes)), device(*new CudaDevice(index, [this](TensorMemory* memory) {
          tensors = memory;
          return &driver;
        })) {}
  TensorMemory* tensors = nullptr;
  FakeCudaDriver& driver;
  CudaDevice& device;
};

TEST(CudaDeviceTest, EveryTensorIsChargedBeforeTheGpuIsAsked) {
  Gpu gpu(1);
  gpu.device.ledger().set_budget(10'000);
  {
    c10::DataPtr tensor = gpu.tensors->allocate(4000);
    EXPECT_EQ(gpu.device.ledger().used_bytes(), DeviceMemory::charge_of(4000));
    EXPECT_EQ(tensor.device(), c10::Device(c10::kCUDA, 1));
    Block* block = block_behind(tensor);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(block->data, tensor.get());
    const int64_t asked = gpu.driver.asked;
    EXPECT_THROW(gpu.tensors->allocate(8000), OutOfBudget);
    EXPECT_EQ(gpu.driver.asked, asked);
  }
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
  EXPECT_TRUE(gpu.driver.held.empty());
}

TEST(CudaDeviceTest, ABorrowedPointerNeverFreesItsMemoryAlsoWhenItsUserThrows) {
  static int freed = 0;
  int memory = 0;
  const auto free = [](void*) { ++freed; };
  const c10::DataPtr owner(
      &memory, &memory, [](void*) {}, c10::Device(c10::kCUDA, 0));
  try {
    const BorrowedData borrowed(owner, free);
    EXPECT_EQ(borrowed.pointer().get(), &memory);
    EXPECT_EQ(borrowed.pointer().get_deleter(), static_cast<c10::DeleterFnPtr>(free));
    EXPECT_EQ(borrowed.pointer().device(), owner.device());
    throw std::runtime_error("as an allocator that cannot record a stream");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(freed, 0);
}

/// A reclaimer, as an open Session has one.
struct NoReclaimer final : Reclaimer {
  void reclaim(int64_t) override { throw OutOfBudget("nothing can leave", 0, 0); }
};

TEST(CudaDeviceTest, AGraphIsNotCapturedWhileASessionIsOpen) {
  Gpu gpu(20);
  NoReclaimer session;
  gpu.driver.captures = true;
  (void)gpu.tensors->allocate(4000);  // no Session moves it
  gpu.device.memory().set_reclaimer(&session);
  EXPECT_THROW(gpu.device.require_compute_order(), std::runtime_error);
  try {
    (void)gpu.tensors->allocate(4000);
    ADD_FAILURE() << "gave the graph memory that will move";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA graph"), std::string::npos) << error.what();
  }
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
  gpu.driver.captures = false;
  (void)gpu.tensors->allocate(4000);
  EXPECT_NO_THROW(gpu.device.require_compute_order());
  gpu.device.memory().set_reclaimer(nullptr);
}

TEST(CudaDeviceTest, OperatorsOfAnotherStreamAreRefusedAlsoWhereTheyTakeNoMemory) {
  Gpu gpu(21);
  EXPECT_NO_THROW(gpu.device.require_compute_order());
  gpu.driver.on_other_stream = true;
  EXPECT_THROW(gpu.device.require_compute_order(), std::runtime_error);
}

TEST(CudaDeviceTest, AnEmptyTensorTakesNothing) {
  Gpu gpu(2);
  c10::DataPtr tensor = gpu.tensors->allocate(0);
  EXPECT_EQ(tensor.get(), nullptr);
  EXPECT_EQ(block_behind(tensor), nullptr);
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
}

TEST(CudaDeviceTest, MemoryWithoutATensorIsChargedToo) {
  Gpu gpu(3);
  void* data = gpu.tensors->allocate_raw(5000);
  EXPECT_EQ(gpu.device.ledger().used_bytes(), DeviceMemory::charge_of(5000));
  EXPECT_FALSE(gpu.tensors->release_raw(&gpu));
  EXPECT_TRUE(gpu.tensors->release_raw(data));
  EXPECT_FALSE(gpu.tensors->release_raw(data));
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
}

/// A reclaimer that gives back the blocks that it holds, one after another.
struct Holder final : Reclaimer {
  void reclaim(int64_t) override { throw OutOfBudget("nothing can leave", 0, 0); }
  bool free_physical_memory(int64_t) override {
    if (held.empty()) return false;
    held.pop_back();
    return true;
  }
  std::vector<c10::DataPtr> held;
};

TEST(CudaDeviceTest, WhenTheGpuIsFullBeforeTheBudgetIsPagesLeaveUntilItFits) {
  Gpu gpu(4, /*gpu_bytes=*/10'000);
  Holder holder;
  for (int i = 0; i < 3; ++i) holder.held.push_back(gpu.tensors->allocate(3000));
  gpu.device.memory().set_reclaimer(&holder);
  c10::DataPtr tensor = gpu.tensors->allocate(6000);
  EXPECT_NE(tensor.get(), nullptr);
  EXPECT_EQ(holder.held.size(), 1u);
  EXPECT_THROW(gpu.tensors->allocate(9000), DeviceError);
  gpu.device.memory().set_reclaimer(nullptr);
}

TEST(CudaDeviceTest, WhatTheGpuHoldsBesideTensorsIsChargedAndGivenBack) {
  Gpu gpu(5);
  gpu.device.ledger().set_budget(1000);
  gpu.driver.outside_bytes = 700;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 700);
  gpu.driver.outside_bytes = 200;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 200);
  gpu.driver.outside_bytes = 1200;
  EXPECT_THROW(gpu.device.charge_external(), OutOfBudget);
  gpu.driver.outside_bytes = -50;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
}

TEST(CudaDeviceTest, WhatOtherProcessesHoldIsNotCharged) {
  Gpu gpu(14);
  gpu.driver.outside_bytes = 5000;  // theirs
  gpu.device.begin_external();
  gpu.driver.outside_bytes += 300;  // ours
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 300);
  gpu.driver.outside_bytes += 9000;  // theirs, between steps
  gpu.device.begin_external();
  gpu.driver.outside_bytes += 50;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 350);
  EXPECT_EQ(gpu.device.library_bytes(), 350);
}

TEST(CudaDeviceTest, StepsThatOverlapChargeEachByteOnce) {
  Gpu gpu(15);
  gpu.device.begin_external();
  gpu.driver.outside_bytes += 100;
  gpu.device.begin_external();  // another thread's
  gpu.driver.outside_bytes += 20;
  gpu.device.charge_external();
  gpu.driver.outside_bytes += 3;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 123);
}

TEST(CudaDeviceTest, WhatCouldNotBeChargedIsOwed) {
  Gpu gpu(16);
  gpu.device.ledger().set_budget(100);
  gpu.device.begin_external();
  gpu.driver.outside_bytes = 250;
  EXPECT_THROW(gpu.device.charge_external(), OutOfBudget);
  EXPECT_EQ(gpu.device.library_bytes(), 0);
  gpu.device.ledger().set_budget(1000);
  gpu.device.begin_external();
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.library_bytes(), 250);
}

TEST(CudaDeviceTest, LibrariesTakeTheirFirstMemoryAsItIsOpened) {
  Gpu gpu(17);
  gpu.driver.outside_bytes = 4000;  // other processes'
  gpu.driver.first_library_bytes = 700;
  gpu.device.warm_up();
  EXPECT_EQ(gpu.device.library_bytes(), 700);
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 700);
  gpu.device.ledger().set_budget(2000);  // a Session opens
  gpu.device.begin_external();
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.library_bytes(), 700);
}

TEST(CudaDeviceTest, AGpuOnWhichNoBackwardRunsIsRefused) {
  Gpu gpu(18);
  gpu.driver.backward_error = "device_index < device_ready_queues_.size()";
  try {
    gpu.device.warm_up();
    ADD_FAILURE() << "opened it";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("open the device"), std::string::npos) << error.what();
  }
}

/// A reclaimer that makes room once a second thread asks for it too, or after 200 ms.
struct Patient final : Reclaimer {
  explicit Patient(Ledger& of) : ledger(of) {}
  void reclaim(int64_t) override {
    ++asking;
    for (int i = 0; i < 200 && asking < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ledger.set_budget(kUnlimitedBytes);
  }
  Ledger& ledger;
  std::atomic<int> asking = 0;
};

TEST(CudaDeviceTest, ThreadsThatLookTogetherChargeWhatIsHeldOutsideOnce) {
  Gpu gpu(12);
  gpu.device.ledger().set_budget(500);
  Patient reclaimer(gpu.device.ledger());
  gpu.device.memory().set_reclaimer(&reclaimer);
  gpu.driver.outside_bytes = 700;
  std::thread other([&] { gpu.device.charge_external(); });
  gpu.device.charge_external();
  other.join();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 700);
  gpu.driver.outside_bytes = 0;
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
  gpu.device.memory().set_reclaimer(nullptr);
}

TEST(CudaDeviceTest, WhatTheDriverRefusesStaysUncharged) {
  Gpu gpu(13);
  gpu.driver.refuses = true;
  EXPECT_THROW(gpu.tensors->allocate(100'000), std::runtime_error);
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
}

TEST(CudaDeviceTest, ManagedMemoryIsBornOnTheGpuCountedAndUsedAgain) {
  Gpu gpu(6);
  gpu.driver.managed_bytes = 1 << 20;
  gpu.device.use_managed_memory(true);
  void* first = nullptr;
  {
    c10::DataPtr tensor = gpu.tensors->allocate(100'000);
    first = tensor.get();
    EXPECT_TRUE(gpu.tensors->is_managed(tensor));
    EXPECT_TRUE(block_behind(tensor)->is_managed);
    EXPECT_EQ(gpu.driver.asked, 0);
    EXPECT_GE(gpu.driver.brought_bytes, 100'000);
    EXPECT_EQ(gpu.device.ledger().used_bytes(), DeviceMemory::charge_of(100'000));
  }
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 0);
  c10::DataPtr again = gpu.tensors->allocate(100'000), other = gpu.tensors->allocate(100'000);
  EXPECT_EQ(again.get(), first);
  EXPECT_GE(std::abs(static_cast<char*>(other.get()) - static_cast<char*>(first)), 128 << 10) << "none shares 64 KiB";
  EXPECT_EQ(gpu.driver.managed_ranges, 1);
}

TEST(CudaDeviceTest, SmallTensorsAndWhatManagedMemoryHasNoRoomForAreTheGpusOwn) {
  Gpu gpu(7);
  gpu.driver.managed_bytes = 1 << 20;
  gpu.device.use_managed_memory(true);
  c10::DataPtr small = gpu.tensors->allocate(4000), large = gpu.tensors->allocate(2 << 20);
  EXPECT_FALSE(gpu.tensors->is_managed(small) || gpu.tensors->is_managed(large));
  EXPECT_EQ(gpu.driver.held.size(), 2u);
}

TEST(CudaDeviceTest, ManagedMemoryGoesWithItsLastTensorOnceNoMoreIsWanted) {
  Gpu gpu(8);
  gpu.driver.managed_bytes = 1 << 20;
  gpu.device.use_managed_memory(true);
  {
    c10::DataPtr tensor = gpu.tensors->allocate(100'000);
    gpu.driver.outside_bytes = 700;
    gpu.device.charge_external();  // the part of them that is managed memory is unknown
    gpu.device.use_managed_memory(false);
    EXPECT_FALSE(gpu.tensors->is_managed(gpu.tensors->allocate(100'000)));
    EXPECT_EQ(gpu.device.ledger().used_bytes(), DeviceMemory::charge_of(100'000));
  }
  gpu.device.charge_external();
  EXPECT_EQ(gpu.device.ledger().used_bytes(), 700);
  gpu.device.use_managed_memory(true);
  EXPECT_EQ(gpu.driver.managed_ranges, 2);
}

TEST(CudaDeviceTest, SaysWhereTheGpuIs) {
  Gpu gpu(10);
  EXPECT_EQ(gpu.device.pci_bus_id(), "");
  gpu.driver.bus_id = "0000:3B:00.0";
  EXPECT_EQ(gpu.device.pci_bus_id(), "0000:3B:00.0");
}

TEST(CudaDeviceTest, AGpuThatCannotPageSaysSo) {
  Gpu gpu(9);
  EXPECT_THROW(gpu.device.use_managed_memory(true), DeviceError);
  EXPECT_THROW(open_device("cpu").use_managed_memory(true), BadRequest);
}

TEST(CudaDeviceTest, OthersThanCpuAndCudaAreRefusedByName) {
  for (const char* name : {"tpu", "cuda:", "cuda:x", "cuda:64", "cuda:-1", ""}) {
    try {
      open_device(name);
      FAIL() << name;
    } catch (const BadRequest& error) {
      EXPECT_NE(std::string(error.what()).find(str("'", name, "'")), std::string::npos) << error.what();
    }
  }
}

TEST(CudaDeviceTest, WithoutADriverTheErrorSaysSo) {
  if (::dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "there is a driver";
  try {
    open_device("cuda");
    FAIL() << "no driver, but a device";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("[cuda] no NVIDIA driver"), std::string::npos) << error.what();
  }
  EXPECT_EQ(find_device(c10::Device(c10::kCUDA, 0)), nullptr);
}

}  // namespace
}  // namespace spillway
