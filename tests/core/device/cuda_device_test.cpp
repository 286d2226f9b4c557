// What a card's tensors are charged, on a double of the card; and what is said where there is none.
#include "core/device/cuda_device.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/device/open_device.h"
#include "core/error.h"
#include "tests/support/fake_cuda.h"

namespace spillway {
namespace {

using testing::FakeCudaDriver;

/// LibTorch keeps devices for ever, so every test has its own card.
struct Card {
  explicit Card(int index, int64_t card_bytes = int64_t{1} << 30)
      : driver(*new FakeCudaDriver(card_bytes)), device(*new CudaDevice(index, [this](TensorMemory* memory) {
          tensors = memory;
          return &driver;
        })) {}
  TensorMemory* tensors = nullptr;
  FakeCudaDriver& driver;
  CudaDevice& device;
};

TEST(CudaDeviceTest, EveryTensorIsChargedBeforeTheCardIsAsked) {
  Card card(1);
  card.device.ledger().set_budget(10'000);
  {
    c10::DataPtr tensor = card.tensors->allocate(4000);
    EXPECT_EQ(card.device.ledger().used_bytes(), DeviceMemory::charge_of(4000));
    EXPECT_EQ(tensor.device(), c10::Device(c10::kCUDA, 1));
    Block* block = block_behind(tensor);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(block->data, tensor.get());
    const int64_t asked = card.driver.asked;
    EXPECT_THROW(card.tensors->allocate(8000), OutOfBudget);
    EXPECT_EQ(card.driver.asked, asked);
  }
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
  EXPECT_TRUE(card.driver.held.empty());
}

TEST(CudaDeviceTest, AnEmptyTensorTakesNothing) {
  Card card(2);
  c10::DataPtr tensor = card.tensors->allocate(0);
  EXPECT_EQ(tensor.get(), nullptr);
  EXPECT_EQ(block_behind(tensor), nullptr);
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
}

TEST(CudaDeviceTest, MemoryWithoutATensorIsChargedToo) {
  Card card(3);
  void* data = card.tensors->allocate_raw(5000);
  EXPECT_EQ(card.device.ledger().used_bytes(), DeviceMemory::charge_of(5000));
  EXPECT_FALSE(card.tensors->release_raw(&card));
  EXPECT_TRUE(card.tensors->release_raw(data));
  EXPECT_FALSE(card.tensors->release_raw(data));
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
}

/// Gives back what it holds, one after another.
struct Holder final : Reclaimer {
  void reclaim(int64_t) override { throw OutOfBudget("nothing can leave", 0, 0); }
  bool free_physical_memory(int64_t) override {
    if (held.empty()) return false;
    held.pop_back();
    return true;
  }
  std::vector<c10::DataPtr> held;
};

TEST(CudaDeviceTest, WhenTheCardIsFullBeforeTheBudgetIsPagesLeaveUntilItFits) {
  Card card(4, /*card_bytes=*/10'000);
  Holder holder;
  for (int i = 0; i < 3; ++i) holder.held.push_back(card.tensors->allocate(3000));
  card.device.memory().set_reclaimer(&holder);
  c10::DataPtr tensor = card.tensors->allocate(6000);
  EXPECT_NE(tensor.get(), nullptr);
  EXPECT_EQ(holder.held.size(), 1u);
  EXPECT_THROW(card.tensors->allocate(9000), DeviceError);
  card.device.memory().set_reclaimer(nullptr);
}

TEST(CudaDeviceTest, WhatTheCardHoldsBesideTensorsIsChargedAndGivenBack) {
  Card card(5);
  card.device.ledger().set_budget(1000);
  card.driver.outside_bytes = 700;
  card.device.charge_external();
  EXPECT_EQ(card.device.ledger().used_bytes(), 700);
  card.driver.outside_bytes = 200;
  card.device.charge_external();
  EXPECT_EQ(card.device.ledger().used_bytes(), 200);
  card.driver.outside_bytes = 1200;
  EXPECT_THROW(card.device.charge_external(), OutOfBudget);
  card.driver.outside_bytes = -50;
  card.device.charge_external();
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
}

/// Makes room once another thread asks for it too, or after a while.
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
  Card card(12);
  card.device.ledger().set_budget(500);
  Patient reclaimer(card.device.ledger());
  card.device.memory().set_reclaimer(&reclaimer);
  card.driver.outside_bytes = 700;
  std::thread other([&] { card.device.charge_external(); });
  card.device.charge_external();
  other.join();
  EXPECT_EQ(card.device.ledger().used_bytes(), 700);
  card.driver.outside_bytes = 0;
  card.device.charge_external();
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
  card.device.memory().set_reclaimer(nullptr);
}

TEST(CudaDeviceTest, WhatTheDriverRefusesStaysUncharged) {
  Card card(13);
  card.driver.refuses = true;
  EXPECT_THROW(card.tensors->allocate(100'000), std::runtime_error);
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
}

TEST(CudaDeviceTest, ManagedMemoryIsBornOnTheCardCountedAndUsedAgain) {
  Card card(6);
  card.driver.managed_bytes = 1 << 20;
  card.device.use_managed_memory(true);
  void* first = nullptr;
  {
    c10::DataPtr tensor = card.tensors->allocate(100'000);
    first = tensor.get();
    EXPECT_TRUE(card.tensors->is_managed(tensor));
    EXPECT_TRUE(block_behind(tensor)->is_managed);
    EXPECT_EQ(card.driver.asked, 0);
    EXPECT_GE(card.driver.brought_bytes, 100'000);
    EXPECT_EQ(card.device.ledger().used_bytes(), DeviceMemory::charge_of(100'000));
  }
  EXPECT_EQ(card.device.ledger().used_bytes(), 0);
  c10::DataPtr again = card.tensors->allocate(100'000), other = card.tensors->allocate(100'000);
  EXPECT_EQ(again.get(), first);
  EXPECT_GE(std::abs(static_cast<char*>(other.get()) - static_cast<char*>(first)), 128 << 10) << "none shares 64 KiB";
  EXPECT_EQ(card.driver.managed_ranges, 1);
}

TEST(CudaDeviceTest, SmallTensorsAndWhatManagedMemoryHasNoRoomForAreTheCardsOwn) {
  Card card(7);
  card.driver.managed_bytes = 1 << 20;
  card.device.use_managed_memory(true);
  c10::DataPtr small = card.tensors->allocate(4000), large = card.tensors->allocate(2 << 20);
  EXPECT_FALSE(card.tensors->is_managed(small) || card.tensors->is_managed(large));
  EXPECT_EQ(card.driver.held.size(), 2u);
}

TEST(CudaDeviceTest, ManagedMemoryGoesWithItsLastTensorOnceNoMoreIsWanted) {
  Card card(8);
  card.driver.managed_bytes = 1 << 20;
  card.device.use_managed_memory(true);
  {
    c10::DataPtr tensor = card.tensors->allocate(100'000);
    card.driver.outside_bytes = 700;
    card.device.charge_external();  // nobody knows what of it is managed memory on the card
    card.device.use_managed_memory(false);
    EXPECT_FALSE(card.tensors->is_managed(card.tensors->allocate(100'000)));
    EXPECT_EQ(card.device.ledger().used_bytes(), DeviceMemory::charge_of(100'000));
  }
  card.device.charge_external();
  EXPECT_EQ(card.device.ledger().used_bytes(), 700);
  card.device.use_managed_memory(true);
  EXPECT_EQ(card.driver.managed_ranges, 2);
}

TEST(CudaDeviceTest, SaysWhereTheCardIs) {
  Card card(10);
  EXPECT_EQ(card.device.pci_bus_id(), "");
  card.driver.bus_id = "0000:3B:00.0";
  EXPECT_EQ(card.device.pci_bus_id(), "0000:3B:00.0");
}

TEST(CudaDeviceTest, ACardThatCannotPageSaysSo) {
  Card card(9);
  EXPECT_THROW(card.device.use_managed_memory(true), DeviceError);
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
