/// LibTorch's CPU allocator on top of a DeviceMemory: every CPU tensor of the process is counted.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include "core/device_memory.h"

namespace spillway {

/// The process's CPU as a budgeted device. LibTorch keeps a raw pointer to its CPU allocator for ever, so this lives
/// from the first use to the end of the process: one of the process-wide exceptions that LibTorch forces.
class CpuDevice {
 public:
  /// Installs the counting allocator in LibTorch at the first call. Tensors that exist already keep their memory, which
  /// is not counted. Thread-safe.
  static CpuDevice& instance();

  Ledger& ledger() noexcept { return ledger_; }
  DeviceMemory& memory() noexcept { return memory_; }
  c10::Allocator* allocator() noexcept { return allocator_; }

  /// The block behind a storage of this allocator; nullptr for memory that came from elsewhere, or that is absent.
  static Block* block_of(const c10::DataPtr& data);
  /// Wraps a block for a storage; the storage's end releases the block.
  static c10::DataPtr wrap(Block* block);

 private:
  CpuDevice();
  Arena arena_;
  Ledger ledger_;
  DeviceMemory memory_;
  c10::Allocator* allocator_;
};

}  // namespace spillway
