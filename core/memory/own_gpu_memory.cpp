#include "core/memory/own_gpu_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace spillway {

/// The used part of NVML, as nvml.h declares it. The library stays loaded.
struct OwnGpuMemory::Nvml {
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
  };
  using Device = void*;
  int (*init)() = nullptr;
  int (*find_device)(const char* pci_bus_id, Device*) = nullptr;
  int (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;
  Device device = nullptr;

  bool load(const char* name) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    init = reinterpret_cast<decltype(init)>(::dlsym(library, "nvmlInit_v2"));
    find_device = reinterpret_cast<decltype(find_device)>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    processes = reinterpret_cast<decltype(processes)>(::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
    return init && find_device && processes && init() == 0;
  }
};

std::unique_ptr<OwnGpuMemory> OwnGpuMemory::find(const std::string& pci_bus_id, int64_t least_bytes,
                                                 const char* library) {
  auto nvml = std::make_unique<Nvml>();
  if (!nvml->load(library) || nvml->find_device(pci_bus_id.c_str(), &nvml->device) != 0) return nullptr;
  std::unique_ptr<OwnGpuMemory> found(new OwnGpuMemory(std::move(nvml)));
  const auto bytes = found->bytes();
  return bytes && *bytes >= least_bytes ? std::move(found) : nullptr;
}

OwnGpuMemory::OwnGpuMemory(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
OwnGpuMemory::~OwnGpuMemory() = default;

std::optional<int64_t> OwnGpuMemory::bytes() const {
  constexpr int kInsufficientSize = 7;   // NVML_ERROR_INSUFFICIENT_SIZE
  constexpr auto kNotAvailable = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE
  constexpr unsigned kProcesses = 64, kMost = 4096;
  std::vector<Nvml::ProcessInfo> all(kProcesses);
  unsigned count = kProcesses;
  int status = nvml_->processes(nvml_->device, &count, all.data());
  while (status == kInsufficientSize && count < kMost) {
    count += kProcesses;  // more may start meanwhile
    all.resize(count);
    status = nvml_->processes(nvml_->device, &count, all.data());
  }
  if (status != 0) return std::nullopt;
  for (unsigned i = 0; i < count; ++i)
    if (all[i].pid == static_cast<unsigned>(::getpid()) && all[i].used_bytes != kNotAvailable) return all[i].used_bytes;
  return std::nullopt;
}

HeldGpuMemory::HeldGpuMemory(std::unique_ptr<OwnGpuMemory> own, Look first) : own_(std::move(own)), first_(first) {
  const auto bytes = own_ ? own_->bytes() : std::nullopt;
  if (!bytes) own_.reset();
  first_own_ = own_bytes_ = bytes.value_or(0);
}

int64_t HeldGpuMemory::bytes(Look now) {
  if (own_) own_bytes_ = own_->bytes().value_or(own_bytes_);
  const int64_t reserved = now.reserved_bytes - first_.reserved_bytes;
  if (own_ && !is_trusted_ && reserved > 0) {
    is_trusted_ = own_bytes_ - first_own_ >= reserved / 2;
    if (!is_trusted_) own_.reset();
  }
  return own_ ? own_bytes_ : first_own_ + now.used_bytes - first_.used_bytes;
}

}  // namespace spillway
