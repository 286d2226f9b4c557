/// The interface that collectives on GPUs need of a library through which GPUs talk; NCCL is that library.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Some ranks with a GPU each, numbered from 0, as one of them sees them. All call the same methods in the same order,
/// one after another. finished() returns true before the next method is called, also after a group was made. Pointers
/// are to the GPU's memory. Work is in the order of the GPU's current stream, and nothing here blocks the host. Used by
/// one thread at a time. Throws std::runtime_error with the library's text.
class GpuCommunicator {
 public:
  virtual ~GpuCommunicator() = default;
  /// Starts a reduce-scatter: `to`, `count` elements, becomes the sum, maximum or minimum of all members' elements
  /// rank·count … of `from`. `to` may be that very place.
  virtual void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) = 0;
  /// Starts an allreduce: `to`, `count` elements, becomes the sum, maximum or minimum of all members' `from`. `from`
  /// may be the very place. The library chooses the way.
  virtual void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) = 0;
  /// Starts an all-gather: `to` becomes every member's `count` elements at `from`, in the order of ranks. `from` may be
  /// its place in `to`.
  virtual void all_gather(const void* from, void* to, int64_t count, Element element) = 0;
  /// Starts a broadcast: `data` becomes that of `root` on every rank in `members`. Only these ranks call it.
  virtual void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) = 0;
  /// Starts making groups. Each joins all members with the same color, 0 or more, in the order of their keys.
  virtual std::unique_ptr<GpuCommunicator> split(int color, int key) = 0;
  /// True when the operation that was started last is done; also the making of this group. Throws the error of an
  /// operation that failed meanwhile.
  virtual bool finished() = 0;
  /// Ends the operation under way, on the GPU too. Nothing else is called later.
  virtual void abort() noexcept = 0;
};

/// The identifier that one rank makes and all ranks need to meet.
using NcclUniqueId = std::array<std::byte, 128>;

/// The library through which GPUs talk. Throws std::runtime_error with the library's text.
class GpuNetwork {
 public:
  virtual ~GpuNetwork() = default;
  /// Returns the library's name and version, `NCCL 2.28.9`; the same on ranks that can meet.
  virtual std::string name() const = 0;
  /// Returns the name of a GPU within its host: `0000:3b:00.0`. Parts of one GPU have the same name.
  virtual std::string gpu_name(int gpu) = 0;
  virtual NcclUniqueId make_unique_id() = 0;
  /// Starts meeting the other ranks; see GpuCommunicator::finished().
  virtual std::unique_ptr<GpuCommunicator> join(const NcclUniqueId& invitation, int size, int rank, int gpu) = 0;
};

/// The CUDA library's entry for the network; it is absent in a build without NCCL.
using OpenDeviceNetwork = GpuNetwork* (*)();
inline constexpr const char* kOpenDeviceNetwork = "spillway_open_nccl";

}  // namespace spillway::ddl
