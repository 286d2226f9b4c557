#include "core/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <new>

#include "core/bytes.h"
#include "core/error.h"
#include "core/topology.h"

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

/// The library costs half a second and 350 MB, so it is not loaded where it could not work.
OpenCudaDriver load_library() {
  require_driver();
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw DeviceError(str("[cuda] there is a driver, but ", kLibrary, " cannot be loaded: ", last_error()));
  auto open = reinterpret_cast<OpenCudaDriver>(::dlsym(library, kOpenCudaDriver));
  if (!open) throw DeviceError(str("[cuda] ", kLibrary, " is not of this version: ", last_error()));
  return open;
}

CudaDriver* open_driver(int index, TensorMemory* tensors) {
  std::string error;
  CudaDriver* driver = load_library()(index, tensors, &error);
  if (!driver) throw DeviceError("[cuda] " + error);
  return driver;
}

}  // namespace

void load_libtorch_cuda() {
  require_driver();
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL))
    throw DeviceError(str("[cuda] there is a driver, but LibTorch's CUDA half cannot be loaded: ", last_error()));
}

CudaDevice& CudaDevice::open(int index) {
  static std::mutex mutex;
  static CudaDevice* the_device = nullptr;  // LibTorch has one CUDA allocator, and keeps it for ever
  std::lock_guard lock(mutex);
  if (!the_device)
    the_device = new CudaDevice(index, [index](TensorMemory* tensors) { return open_driver(index, tensors); });
  if (the_device->torch_device().index() != index)
    throw DeviceError(str("[cuda] cuda:", index, " was asked for, but this process uses ",
                          the_device->torch_device().str(), "; run one process per card"));
  return *the_device;
}

CudaDevice::CudaDevice(int index, const MakeDriver& make_driver)
    : Device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)), static_cast<BlockSource&>(*this)),
      driver_(make_driver(this)) {
  install(driver_->allocator());
}

Block* CudaDevice::try_take(int64_t charge, Category category) {
  void* data = driver_->allocate(charge - static_cast<int64_t>(sizeof(Block)));
  if (!data) return nullptr;
  return new OwnedBlock{{data, charge, nullptr, nullptr, category}, this};
}

void CudaDevice::give_back(Block* block) noexcept {
  driver_->deallocate(block->data);
  delete static_cast<OwnedBlock*>(block);
}

void CudaDevice::release_block(void* context) {
  auto* block = static_cast<OwnedBlock*>(context);
  if (block) block->device->memory().release(block);
}

Block* CudaDevice::find_block(const c10::DataPtr& data) const {
  return data.get() && data.get_deleter() == &release_block ? static_cast<OwnedBlock*>(data.get_context()) : nullptr;
}

c10::DataPtr CudaDevice::wrap_block(Block* block) {
  return {block->data, static_cast<OwnedBlock*>(block), &release_block, torch_device()};
}

Block* CudaDevice::take(size_t bytes) {
  try {
    return memory().allocate(static_cast<int64_t>(bytes), birth_category());
  } catch (const std::bad_alloc&) {
    throw DeviceError(str("[cuda] ", torch_device().str(), " has no memory for ",
                          format_bytes(static_cast<int64_t>(bytes)), " although ", format_bytes(ledger().used_bytes()),
                          " of a budget of ", format_bytes(ledger().budget_bytes()),
                          " are held and all that could leave has left; other processes may use the card"));
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

/// Pinned memory cannot be swapped out, so at most half of the machine's is used.
MemoryRange CudaDevice::reserve_host_memory(int64_t capacity_bytes) {
  const int64_t capacity = std::min(capacity_bytes, discover_host().memory_bytes / 2);
  MemoryRange range = reserve_memory(capacity);
  prefer_numa_nodes(range.data(), range.bytes(), numa_nodes_near(cpus_of_this_thread()));
  driver_->set_host_range(range.data(), range.bytes());
  return range;
}

std::unique_ptr<Timeline> CudaDevice::make_timeline(std::string_view lane) {
  return driver_->make_timeline(std::string(lane));
}

void CudaDevice::charge_outside() {
  const int64_t now = std::max<int64_t>(0, driver_->bytes_outside());
  if (now < charged_outside_)
    ledger().refund(charged_outside_ - now, Category::other);
  else if (now > charged_outside_)
    memory().charge(now - charged_outside_, Category::other);
  charged_outside_ = now;
}

}  // namespace spillway
