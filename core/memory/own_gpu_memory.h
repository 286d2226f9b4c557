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

/// Counts the bytes that a GPU holds: this process's by NVML, where that can be trusted, else those of all processes.
/// Only differences between two answers mean anything. In a container, NVML's process number may be another process's
/// of the host. So it is trusted once the bytes behind it have grown with what this process reserved. They must grow by
/// half of that at least, because the driver may have had some at hand. Otherwise the count goes on with all processes,
/// as if it had begun so. Thread: one at a time.
class HeldGpuMemory {
 public:
  /// One look at the GPU.
  struct Look {
    int64_t reserved_bytes;  ///< that this process has allocated from the GPU for tensors
    int64_t used_bytes;      ///< that all processes hold together
  };
  /// `own` is this process's memory, which may be another's; nullptr: NVML does not know it.
  HeldGpuMemory(std::unique_ptr<OwnGpuMemory> own, Look first);

  /// Returns the bytes at a look. Cost: about 50 µs.
  int64_t bytes(Look now);

 private:
  std::unique_ptr<OwnGpuMemory> own_;  // nullptr: all processes are counted
  const Look first_;
  int64_t first_own_ = 0;
  int64_t own_bytes_ = 0;  // at the last look that NVML answered
  bool is_trusted_ = false;
};

}  // namespace spillway
