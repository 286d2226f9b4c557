/// A CUDA GPU as a budgeted device.
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

/// Loads LibTorch's CUDA half without counting its memory, for runs that Spillway is compared with. Throws DeviceError.
void load_libtorch_cuda();

/// Returns an entry of the CUDA library, and loads the library for it. Throws DeviceError naming the missing part.
void* find_in_cuda_library(const char* name);

/// A GPU whose tensors' memory is charged before it is allocated. The memory comes from LibTorch's caching allocator,
/// or is managed memory. A process has one such GPU; memory that LibTorch allocates on other GPUs is not counted.
class CudaDevice final : public Device, private BlockSource, private TensorMemory {
 public:
  /// Returns the device. The first call loads the driver's library. Throws DeviceError naming the missing part, or when
  /// the process uses another GPU. Thread-safe.
  static CudaDevice& open(int index);

  /// Makes a device with a driver of the caller's, for tests.
  using MakeDriver = std::function<CudaDriver*(TensorMemory*)>;
  CudaDevice(int index, const MakeDriver& make_driver);

  /// Returns the GPU's PCI address: `0000:3B:00.0`. Empty when it is not known.
  std::string pci_bus_id() const { return driver_->pci_bus_id(); }

  Block* find_block(const c10::DataPtr& data) const override;
  c10::DataPtr wrap_block(Block* block) override;
  bool is_uncounted(const c10::DataPtr& data) const override { return driver_->is_native(data); }
  void copy(void* to, const void* from, int64_t bytes) override { driver_->copy(to, from, bytes); }
  MemoryRange reserve_host_memory(int64_t capacity_bytes) override;
  void use_managed_memory(bool use) override;
  std::unique_ptr<Timeline> make_timeline(std::string_view lane) override;
  std::unique_ptr<ComputeClock> make_clock() override { return driver_->make_clock(); }
  void require_compute_order() const override;
  void begin_external() override;
  void charge_external() override;
  int64_t library_bytes() const override;
  /// Lets libraries take their first memory, and charges it. Call it once, before the first Session. Throws DeviceError
  /// when LibTorch cannot run a backward on the GPU; the device is of no use then.
  void warm_up();

 private:
  /// A block's descriptor on the host. The context of a DataPtr points to it.
  struct OwnedBlock : Block {
    CudaDevice* device;
  };
  static void release_block(void* context);
  Block* take(size_t bytes);

  Block* try_acquire(int64_t charge, Category category) override;
  void return_block(Block* block) noexcept override;

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr deleter() const override { return &release_block; }
  bool is_managed(const c10::DataPtr& data) const override;
  void* allocate_raw(size_t bytes) override;
  bool release_raw(void* data) noexcept override;
  bool paging() const override { return memory().has_reclaimer(); }

  /// One range of managed memory, divided into blocks. Freeing it would make the host wait for the GPU. So the range is
  /// kept while a block is in use, or managed memory is switched on.
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
  mutable std::mutex charging_outside_;  // held also while room is made for the charge
  int64_t seen_outside_ = 0;             // at the last look
  int64_t owed_outside_ = 0;             // could not be charged yet
  int64_t workspace_bytes_ = 0;
  int open_steps_ = 0;
};

}  // namespace spillway
