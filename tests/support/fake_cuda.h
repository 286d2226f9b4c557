// A double of the CUDA library: host memory that claims to be a GPU's, of a size that the test sets.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/device/cuda_driver.h"

namespace spillway::testing {

class FakeCudaDriver final : public CudaDriver {
 public:
  explicit FakeCudaDriver(int64_t gpu_bytes) : free_bytes(gpu_bytes) {}

  void* allocate(int64_t bytes) override {
    ++asked;
    if (refuses) throw std::runtime_error("not on this stream");
    if (bytes > free_bytes) return nullptr;
    free_bytes -= bytes;
    void* data = std::malloc(static_cast<size_t>(bytes));
    held[data] = bytes;
    return data;
  }
  void deallocate(void* data) noexcept override {
    free_bytes += held[data];
    held.erase(data);
    std::free(data);
  }
  bool is_native(const c10::DataPtr&) const override { return false; }
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  MemoryRange reserve_managed() override {
    if (managed_bytes == 0) throw std::runtime_error("this card cannot page");
    ++managed_ranges;
    return reserve_memory(managed_bytes);
  }
  void bring(void*, int64_t bytes) noexcept override { brought_bytes += bytes; }
  void require_compute_stream() const override {
    ++looks;
    if (on_other_stream) throw std::runtime_error("another stream than the compute stream");
  }
  bool is_capturing() const override {
    ++looks;
    return captures;
  }
  std::string pci_bus_id() const override { return bus_id; }
  void set_host_range(char*, int64_t bytes) override { host_bytes = bytes; }
  std::unique_ptr<Timeline> make_timeline(const std::string& lane) override {
    return std::make_unique<WorkerTimeline>(lane);
  }
  std::unique_ptr<ComputeClock> make_clock() override { return nullptr; }
  void warm_up() override {
    if (!backward_error.empty()) throw std::runtime_error(backward_error);
    outside_bytes += first_library_bytes;
  }
  int64_t bytes_outside() override { return outside_bytes; }
  c10::Allocator* allocator() override { return for_tensors; }

  std::string bus_id;  ///< empty: unknown
  int64_t free_bytes;
  int64_t outside_bytes = 0;        ///< libraries' and other processes'
  int64_t first_library_bytes = 0;  ///< taken as the GPU is warmed up
  std::string backward_error;       ///< not empty: no backward runs
  int64_t host_bytes = 0;
  int64_t asked = 0;
  bool refuses = false;                    ///< refuses memory, with an error of its own
  bool captures = false;                   ///< a CUDA graph captures
  bool on_other_stream = false;            ///< the current stream is not the compute stream
  mutable std::atomic<int64_t> looks = 0;  ///< at the current stream
  int64_t managed_bytes = 0;               ///< 0: the GPU has no managed memory
  int64_t managed_ranges = 0;
  int64_t brought_bytes = 0;
  std::map<void*, int64_t> held;
  c10::Allocator* for_tensors = nullptr;  ///< the allocator that LibTorch is given
};

}  // namespace spillway::testing
