/// The inside of the host tier, for its source files.
#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "swap/tiers/host_tier.h"

namespace spillway {

/// A block of the slab; it outlives its copy while the disk uses it.
struct HostTier::Block {
  HostSlab& slab;
  void* const data;
  const int64_t bytes;
  Block(HostSlab& from, void* at, int64_t size) : slab(from), data(at), bytes(size) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { slab.deallocate(data, bytes); }
};

/// The tier's, under its lock.
struct HostCopy::State : std::enable_shared_from_this<State> {
  struct PageIn {
    void* device;
    TicketSource source;
  };
  State(HostTier& in, int64_t size, PageUseTime used) : tier(in), bytes(size), use(used) {}

  HostTier& tier;
  const int64_t bytes;
  PageUseTime use;
  std::shared_ptr<HostTier::Block> block;  ///< the bytes in the slab, if they are there
  std::shared_ptr<DiskPage> disk;          ///< their place on disk …
  bool stored = false;                     ///< … and whether they are there
  bool moving = false;                     ///< the disk writes or reads them
  bool only = false;                       ///< the device has them no more
  bool unreadable = false;                 ///< the disk failed to give them back ahead of their use
  bool dropped = false;
  int pins = 0;                  ///< range calls under way
  Ticket device;                 ///< the last page-out, page-in or window
  Ticket filled;                 ///< the last page-out or written window: where the bytes come from
  std::optional<PageIn> wanted;  ///< a page-in that waits until the bytes are back in the slab

  bool idle() const { return !moving && pins == 0 && device.done(); }
};

/// Keeps a copy where it is while a range call uses it.
struct HostTier::Pin {
  Pin(HostTier& tier, State& copy) : tier(tier), copy(copy) {
    std::lock_guard lock(tier.mutex_);
    ++copy.pins;
  }
  ~Pin() {
    std::lock_guard lock(tier.mutex_);
    --copy.pins;
    tier.advance();
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  HostTier& tier;
  State& copy;
};

}  // namespace spillway
