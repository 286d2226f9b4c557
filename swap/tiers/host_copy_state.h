/// The host tier's record of one copy, for its source files.
#pragma once
#include <memory>
#include <optional>

#include "core/ids.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/tiers/disk_tier.h"
#include "swap/tiers/host_copy.h"

namespace spillway::swap {

/// A block of the slab; it outlives its copy while the disk uses it.
struct SlabBlock {
  HostSlab& slab;
  void* const data;
  const int64_t bytes;
  SlabBlock(HostSlab& from, void* at, int64_t size) : slab(from), data(at), bytes(size) {}
  SlabBlock(const SlabBlock&) = delete;
  SlabBlock& operator=(const SlabBlock&) = delete;
  ~SlabBlock() { slab.deallocate(data, bytes); }
};

/// The state of one copy. The tier uses it under its lock.
struct HostCopy::State : std::enable_shared_from_this<State> {
  struct PageIn {
    void* device;
    TicketSource source;
  };
  State(HostTier& in, int64_t size, PageUseTime used) : tier(in), bytes(size), use(used) {}

  HostTier& tier;
  const int64_t bytes;
  PageUseTime use;
  std::shared_ptr<SlabBlock> block;  ///< the bytes in the slab, if they are there
  std::shared_ptr<DiskPage> disk;    ///< their place on disk …
  bool stored = false;               ///< … and true when they are there
  bool moving = false;               ///< the disk writes or reads them
  bool is_last_copy = false;         ///< the device no longer has the bytes
  bool unreadable = false;           ///< the disk failed to give them back ahead of their use
  bool dropped = false;
  int pins = 0;                  ///< range calls under way
  Ticket device;                 ///< ticket of the last page-out, page-in or window
  Ticket filled;                 ///< ticket of the last page-out or written window, which brings the bytes
  std::optional<PageIn> wanted;  ///< a page-in that waits until the bytes are back in the slab

  bool idle() const { return !moving && pins == 0 && device.done(); }
};

}  // namespace spillway::swap
