/// What collectives on cards need of a library that lets cards talk: the seam to NCCL.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ddl/comm/element.h"

namespace spillway::ddl {

/// Some ranks with a card each, numbered from 0, as one of them sees them. All call the same methods in the same order,
/// one after another: finished() says true before the next is called, also after a group was made. Pointers are to the
/// card's memory. Work is in the order of the card's current stream, and nothing here blocks the host. Used by one
/// thread at a time. Throws std::runtime_error with the library's text.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// Starts: `to`, `count` elements, becomes the sum, maximum or minimum of all members' elements rank·count … of
  /// `from`. `to` may be that very place.
  virtual void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) = 0;
  /// Starts: `to`, `count` elements, becomes that of all members' `from`, which may be the very place, as the library
  /// likes it best.
  virtual void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) = 0;
  /// Starts: `to` becomes every member's `count` elements at `from`, in the order of ranks. `from` may be its place in
  /// `to`.
  virtual void all_gather(const void* from, void* to, int64_t count, Element element) = 0;
  /// Starts: `data` becomes that of `root` on every rank in `members`, who alone call it.
  virtual void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) = 0;
  /// Starts making groups: one of all members with the same colour, 0 or more, in the order of their keys.
  virtual std::unique_ptr<DeviceGroup> split(int colour, int key) = 0;
  /// Whether what was started last is done; also the making of this group. Throws what failed meanwhile.
  virtual bool finished() = 0;
  /// Ends what is under way, on the card too. Nothing else is called later.
  virtual void abort() noexcept = 0;
};

/// What one rank makes and all need to meet.
using Invitation = std::array<std::byte, 128>;

/// The library. Throws std::runtime_error with its text.
class DeviceNetwork {
 public:
  virtual ~DeviceNetwork() = default;
  /// `NCCL 2.28.9`; the same on ranks that can meet.
  virtual std::string name() const = 0;
  /// Which card of its host that is: `0000:3b:00.0`. Parts of one card have the same name.
  virtual std::string name_of_card(int card) = 0;
  virtual Invitation invite() = 0;
  /// Starts meeting the others; see DeviceGroup::finished().
  virtual std::unique_ptr<DeviceGroup> join(const Invitation& invitation, int size, int rank, int card) = 0;
};

/// The CUDA library's entry for it; not there in a build without NCCL.
using OpenDeviceNetwork = DeviceNetwork* (*)();
inline constexpr const char* kOpenDeviceNetwork = "spillway_open_nccl";

}  // namespace spillway::ddl
