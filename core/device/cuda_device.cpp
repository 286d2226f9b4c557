#include "core/device/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/host/host_topology.h"

namespace spillway {
namespace {

constexpr const char* kLibrary = "libspillway_cuda.so";

std::string last_error() {
  const char* text = ::dlerror();
  return text ? text : "unknown error";
}

void require_driver() {
  if (!::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
    throw DeviceError(str("[cuda] no NVIDIA driver on this machine (", last_error(), "); use --device cpu"));
}

/// The minimum size of managed tensors. Smaller tensors would share the driver's pages with others, which would move
/// with them.
constexpr int64_t kMinManagedBytes = 64 << 10;

int64_t data_bytes(int64_t charge) {
  return charge - static_cast<int64_t>(sizeof(Block));
}

CudaDriver* open_driver(int index, TensorMemory* tensors) {
  std::string error;
  const auto open = reinterpret_cast<OpenCudaDriver>(find_in_cuda_library(kOpenCudaDriver));
  CudaDriver* driver = open(index, tensors, &error);
  if (!driver) throw DeviceError("[cuda] " + error);
  return driver;
}

}  // namespace

// The library is not loaded where it could not work, because it costs half a second and 350 MB.
void* find_in_cuda_library(const char* name) {
  require_driver();
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw DeviceError(str("[cuda] there is a driver, but ", kLibrary, " cannot be loaded: ", last_error()));
  void* found = ::dlsym(library, name);
  if (!found) throw DeviceError(str("[cuda] ", kLibrary, " is without ", name, ": ", last_error()));
  return found;
}

void load_libtorch_cuda() {
  require_driver();
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL))
    throw DeviceError(str("[cuda] there is a driver, but LibTorch's CUDA half cannot be loaded: ", last_error()));
}

CudaDevice& CudaDevice::open(int index) {
  static std::mutex mutex;
  static CudaDevice* the_device = nullptr;  // LibTorch has one CUDA allocator, and keeps it forever
  static std::string failure;               // the device is kept then too, and is of no use
  std::lock_guard lock(mutex);
  if (!failure.empty()) throw DeviceError(failure);
  if (!the_device) {
    auto* device = new CudaDevice(index, [index](TensorMemory* tensors) { return open_driver(index, tensors); });
    try {
      device->warm_up();
    } catch (const DeviceError& error) {
      failure = error.what();
      throw;
    }
    the_device = device;
  }
  if (the_device->torch_device().index() != index)
    throw DeviceError(str("[cuda] cuda:", index, " was asked for, but this process uses ",
                          the_device->torch_device().str(), "; run one process per GPU"));
  return *the_device;
}

CudaDevice::CudaDevice(int index, const MakeDriver& make_driver)
    : Device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)), static_cast<BlockSource&>(*this)),
      driver_(make_driver(this)) {
  install(driver_->allocator());
}

Block* CudaDevice::try_acquire(int64_t charge, Category category) {
  if (memory().has_reclaimer()) require_compute_order();
  const int64_t bytes = data_bytes(charge);
  std::unique_ptr<OwnedBlock> block(new OwnedBlock{{nullptr, charge, nullptr, nullptr, category}, this});
  block->data = take_managed(bytes);
  block->is_managed = block->data != nullptr;
  if (!block->is_managed) block->data = driver_->allocate(bytes);
  return block->data ? block.release() : nullptr;
}

void CudaDevice::return_block(Block* block) noexcept {
  if (block->is_managed)
    give_back_managed(block->data, data_bytes(block->charged_bytes));
  else
    driver_->deallocate(block->data);
  delete static_cast<OwnedBlock*>(block);
}

void CudaDevice::use_managed_memory(bool use) {
  std::lock_guard lock(mutex_);
  if (use && !managed_) {
    try {
      managed_.emplace(driver_->reserve_managed());
    } catch (const std::runtime_error& error) {
      throw DeviceError(str("[cuda] no Unified Memory: ", error.what()));
    }
  }
  use_managed_ = use;
  if (!use && managed_ && managed_->blocks == 0) managed_.reset();
}

/// Returns managed memory. Returns nullptr when memory of this size is not to be managed, or no range of it is free.
void* CudaDevice::take_managed(int64_t bytes) {
  if (bytes < kMinManagedBytes) return nullptr;
  char* data = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!use_managed_) return nullptr;
    driver_->require_compute_stream();
    const std::optional<int64_t> offset = managed_->free.take(round_up(bytes, kMinManagedBytes));
    if (!offset) return nullptr;
    ++managed_->blocks;
    data = managed_->range.data() + *offset;
  }
  driver_->bring(data, bytes);
  return data;
}

void CudaDevice::give_back_managed(void* data, int64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  managed_->free.give(static_cast<char*>(data) - managed_->range.data(), round_up(bytes, kMinManagedBytes));
  if (--managed_->blocks == 0 && !use_managed_) managed_.reset();
}

void CudaDevice::release_block(void* context) {
  auto* block = static_cast<OwnedBlock*>(context);
  if (block) block->device->memory().release(block);
}

Block* CudaDevice::find_block(const c10::DataPtr& data) const {
  return data.get() && data.get_deleter() == &release_block ? static_cast<OwnedBlock*>(data.get_context()) : nullptr;
}

bool CudaDevice::is_managed(const c10::DataPtr& data) const {
  const Block* block = find_block(data);
  return block && block->is_managed;
}

c10::DataPtr CudaDevice::wrap_block(Block* block) {
  return {block->data, static_cast<OwnedBlock*>(block), &release_block, torch_device()};
}

Block* CudaDevice::take(size_t bytes) {
  try {
    return memory().allocate(bytes, birth_category());
  } catch (const std::bad_alloc&) {
    throw DeviceError(str("[cuda] ", torch_device().str(), " has no memory for ", format_bytes(bytes), " although ",
                          format_bytes(ledger().used_bytes()), " of a budget of ",
                          format_bytes(ledger().budget_bytes()),
                          " are held and all that could leave has left; other processes may use the GPU"));
  }
}

c10::DataPtr CudaDevice::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release_block, torch_device()};
  return wrap_block(take(bytes));
}

void* CudaDevice::allocate_raw(size_t bytes) {
  Block* block = take(bytes);
  std::lock_guard lock(mutex_);
  raw_.emplace(block->data, block);
  return block->data;
}

bool CudaDevice::release_raw(void* data) noexcept {
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto found = raw_.find(data);
    if (found == raw_.end()) return false;
    block = found->second;
    raw_.erase(found);
  }
  memory().release(block);
  return true;
}

MemoryRange CudaDevice::reserve_host_memory(int64_t capacity_bytes) {
  MemoryRange range = reserve_memory_up_to(capacity_bytes);
  std::vector<int> nodes = numa_nodes_near_pci(pci_bus_id());
  if (nodes.empty()) nodes = numa_nodes_near(cpus_of_this_thread());
  prefer_numa_nodes(range.data(), range.bytes(), nodes);
  driver_->set_host_range(range.data(), range.bytes());
  return range;
}

std::unique_ptr<Timeline> CudaDevice::make_timeline(std::string_view lane) {
  return driver_->make_timeline(std::string(lane));
}

void CudaDevice::require_compute_order() const {
  driver_->require_compute_stream();
  if (driver_->is_capturing())
    throw std::runtime_error(str("[cuda] a CUDA graph captures operators of ", torch_device().str(),
                                 " inside a Session, and would keep addresses of tensors that the Session moves; ",
                                 "capture graphs while no Session is open"));
}

void CudaDevice::warm_up() {
  begin_external();
  try {
    driver_->warm_up();
  } catch (const std::exception& error) {
    throw DeviceError(str("[cuda] ", torch_device().str(), " cannot run a product and its backward (", error.what(),
                          "); where LibTorch ran a backward before, open the device (spillway::open_device) first"));
  }
  charge_external();
  std::lock_guard charging(charging_outside_);
  workspace_bytes_ = ledger().used_bytes() - memory().external_bytes();
}

void CudaDevice::begin_external() {
  std::lock_guard charging(charging_outside_);
  if (open_steps_++ == 0) seen_outside_ = driver_->bytes_outside();
}

void CudaDevice::charge_external() {
  bool is_managing = false;
  {
    std::lock_guard lock(mutex_);
    is_managing = managed_.has_value();  // only the driver knows which part of that is on the GPU now
  }
  std::lock_guard charging(charging_outside_);
  open_steps_ = std::max(0, open_steps_ - 1);
  if (is_managing) return;
  const int64_t now = driver_->bytes_outside();
  owed_outside_ += now - std::exchange(seen_outside_, now);
  if (owed_outside_ > 0) {
    memory().charge_external(owed_outside_);  // may throw; they are owed then
    owed_outside_ = 0;
  } else {
    memory().refund_external(-std::exchange(owed_outside_, 0));
  }
}

int64_t CudaDevice::library_bytes() const {
  std::lock_guard charging(charging_outside_);
  return workspace_bytes_ + memory().external_bytes();
}

}  // namespace spillway
