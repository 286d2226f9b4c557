/// A CUDA card as a budgeted device.
#pragma once
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/device/cuda_driver.h"
#include "core/device/device.h"
#include "core/memory/free_ranges.h"

namespace spillway {

/// Loads LibTorch's CUDA half, which then counts nothing: for what is compared with Spillway. Throws DeviceError.
void load_libtorch_cuda();

/// An entry of the CUDA library, which is loaded for it. Throws DeviceError naming what is missing.
void* find_in_cuda_library(const char* name);

/// Tensors' memory comes from LibTorch's caching allocator, or is managed memory, after it has been charged. One card
/// per process: what LibTorch allocates on others is not counted.
class CudaDevice final : public Device, private BlockSource, private TensorMemory {
 public:
  /// Loads the driver's library at the first call. Thread-safe. Throws DeviceError naming what is missing, or when the
  /// process uses another card.
  static CudaDevice& open(int index);

  /// With a driver of the caller's, for tests.
  using MakeDriver = std::function<CudaDriver*(TensorMemory*)>;
  CudaDevice(int index, const MakeDriver& make_driver);

  /// Where the card is: `0000:3B:00.0`. Empty when that is not known.
  std::string pci_bus_id() const { return driver_->pci_bus_id(); }

  Block* find_block(const c10::DataPtr& data) const override;
  c10::DataPtr wrap_block(Block* block) override;
  bool is_uncounted(const c10::DataPtr& data) const override { return driver_->is_native(data); }
  void copy(void* to, const void* from, int64_t bytes) override { driver_->copy(to, from, bytes); }
  MemoryRange reserve_host_memory(int64_t capacity_bytes) override;
  void use_managed_memory(bool use) override;
  std::unique_ptr<Timeline> make_timeline(std::string_view lane) override;
  std::unique_ptr<ComputeClock> make_clock() override { return driver_->make_clock(); }
  void charge_external() override;

 private:
  /// The descriptor is on the host, and what a DataPtr's context points to.
  struct OwnedBlock : Block {
    CudaDevice* device;
  };
  static void release_block(void* context);
  Block* take(size_t bytes);

  Block* try_take(int64_t charge, Category category) override;
  void give_back(Block* block) noexcept override;

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr deleter() const override { return &release_block; }
  bool is_managed(const c10::DataPtr& data) const override;
  void* allocate_raw(size_t bytes) override;
  bool release_raw(void* data) noexcept override;
  bool paging() const override { return memory().has_reclaimer(); }

  /// Addresses of managed memory. Freeing such memory makes the host wait for the card, so it is kept while anything of
  /// it is in use, or may be: one range, divided.
  struct Managed {
    explicit Managed(MemoryRange memory) : range(std::move(memory)) { free.give(0, range.bytes()); }
    const MemoryRange range;
    FreeRanges free;
    int64_t blocks = 0;
  };
  void* take_managed(int64_t bytes);
  void give_back_managed(void* data, int64_t bytes) noexcept;

  CudaDriver* driver_;
  std::mutex mutex_;
  std::optional<Managed> managed_;
  bool use_managed_ = false;
  std::unordered_map<void*, Block*> raw_;
  std::mutex charging_outside_;  // also while room is made for the charge
  int64_t charged_outside_ = 0;
};

}  // namespace spillway
