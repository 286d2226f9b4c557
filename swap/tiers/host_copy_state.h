/// The host tier's record of one copy, for its source files.
#pragma once
#include <memory>
#include <optional>
#include <string_view>

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

/// The place of a copy's bytes in the host tier. HostCopy::State::enter() refuses every change that is not in this
/// table:
///
///     from         to           when
///     (new)        waiting      a page-out begins
///     waiting      in_slab      there is room; without a disk at once
///     waiting      writing      it is needed later than all copies that could leave for it
///     waiting      lost         it could not start, or the disk failed to make room
///     in_slab      spilling     another copy needs the room
///     spilling     in_both      the disk has the bytes
///     spilling     in_slab      the disk failed
///     in_both      on_disk      another copy needs the room
///     in_both      in_slab      the slab's bytes are written
///     writing      on_disk      the disk has the bytes
///     writing      lost         the disk failed
///     on_disk      prefetching  there is room ahead of its use
///     prefetching  in_both      the bytes are back
///     prefetching  unreadable   the disk failed
///     any          dropped      the page needs no copy any more
enum class HostCopyState : uint8_t {
  waiting,      ///< on the device; the page-out waits for room
  in_slab,      ///< in the slab alone; a page-out to it may be under way
  spilling,     ///< in the slab; the disk writes them
  in_both,      ///< in the slab, and the same on disk
  writing,      ///< on the device; the disk writes them through staging buffers
  on_disk,      ///< on disk alone
  prefetching,  ///< on disk; the disk reads them into the slab
  unreadable,   ///< on disk, but the disk failed to give them back ahead; their use tries again and reports
  lost,         ///< never arrived; the page-out's ticket carries the error
  dropped       ///< nowhere; a move that was under way may still end
};
std::string_view name(HostCopyState state) noexcept;
bool may_follow(HostCopyState from, HostCopyState to) noexcept;

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
  std::shared_ptr<DiskPage> disk;    ///< their place on disk, if they have one
  bool is_last_copy = false;         ///< the device no longer has the bytes
  int pins = 0;                      ///< range calls under way
  Ticket device;                     ///< ticket of the last page-out, page-in or window
  Ticket filled;                     ///< ticket of the last page-out or written window, which brings the bytes
  std::optional<PageIn> wanted;      ///< a page-in that waits until the bytes are back in the slab

  bool is(HostCopyState state) const noexcept { return state_ == state; }
  /// True while the disk writes or reads the bytes.
  bool is_moving() const noexcept {
    return is(HostCopyState::spilling) || is(HostCopyState::writing) || is(HostCopyState::prefetching);
  }
  bool idle() const { return !is_moving() && pins == 0 && device.done(); }
  /// Moves to `state`. A dropped copy stays dropped. Throws std::logic_error where the table does not allow it.
  void enter(HostCopyState state);

 private:
  HostCopyState state_ = HostCopyState::waiting;
};

}  // namespace spillway::swap
