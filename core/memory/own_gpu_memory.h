/// The memory that this process holds on a GPU, by NVIDIA's management library.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace spillway {

/// Asks NVML how many bytes this process holds on one GPU: its context, libraries and tensors, and no other process's.
/// Thread-safe. Source: NVIDIA's nvml.h, nvmlDeviceGetComputeRunningProcesses_v3.
class OwnGpuMemory {
 public:
  /// Loads NVML and finds the GPU at a PCI address (`0000:3B:00.0`). Returns nullptr where there is no such library or
  /// GPU, and where NVML does not name this process with at least `least_bytes`: in a container with process numbers of
  /// its own, on shared GPUs, or before the process has a context there.
  static std::unique_ptr<OwnGpuMemory> find(const std::string& pci_bus_id, int64_t least_bytes,
                                            const char* library = "libnvidia-ml.so.1");
  ~OwnGpuMemory();

  /// Returns the bytes; nothing when NVML does not know them now. Cost: about 50 µs.
  std::optional<int64_t> bytes() const;

 private:
  struct Nvml;
  explicit OwnGpuMemory(std::unique_ptr<Nvml> nvml);
  const std::unique_ptr<Nvml> nvml_;
};

}  // namespace spillway
