/// A page's copies to the host tier and back, and the waits for them.
#pragma once
#include <cstdint>

#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "swap/pager/page_table.h"
#include "swap/tiers/host_tier.h"

namespace spillway::swap {

/// Starts copies and notices their ends. Compute must only come after a copy, so it is ordered behind the ticket. On
/// the CPU that waits. On a device compute is queued behind the copy, and the caller goes on. Copies never run under
/// the lock, and keep the blocks they use, never the owner. Called under the lock.
class PageTransfer {
 public:
  PageTransfer(PageTable& table, DeviceMemory& device, HostTier& host, Timeline& out, Timeline& in, PageKeeper& keeper)
      : table_(table), device_(device), host_(host), out_(out), in_(in), keeper_(keeper) {}
  PageTransfer(const PageTransfer&) = delete;
  PageTransfer& operator=(const PageTransfer&) = delete;

  // Page-outs.

  /// Starts the copy of a resident, dirty page. Throws OutOfBudget when the host is full, and the lane's errors.
  void begin_page_out(Page& page);
  /// Starts a page-out ahead of need. Returns false when the page stays, because the host has no room for it or the
  /// copy cannot begin; an eviction that needs its room reports that.
  bool try_page_out(Page& page);
  /// Orders compute behind a copy that allows it. From here on the page counts as clean. Managed memory counts as
  /// absent, because the copy took its bytes. Returns false after a copy that failed: the page is dirty as before.
  bool complete_page_out(Page& page) noexcept;
  /// Waits until the page's block may go. Throws the copy's error.
  void wait_for_page_out(PagerLock& lock, Page& page);
  /// Waits until no copy out of the page is under way.
  void finish_pending_page_out(PagerLock& lock, Page& page);
  /// Notices a page-out that is done. After one that failed, the caller that needs the room tries again and reports.
  void poll_page_out(Page& page) noexcept;
  /// Makes a page dirty that may be written, and forgets its host copy. Waits for a copy that reads it.
  void make_dirty(PagerLock& lock, Page& page);
  /// Drops host copies of resident pages to make room for a page of these bytes. Only pages that are used sooner give
  /// up their copies. They are dirty again, which costs a copy where a place on disk would cost a write and a read.
  /// Without a disk, all resident pages may have to give up theirs. None does where all of them together would not free
  /// enough.
  void make_host_room(int64_t bytes, const PageUseTime& use);

  // Page-ins.

  /// Starts the copy of an absent page. Returns false when the device has no room. Throws the error of the lane or the
  /// device; the page is absent then.
  bool begin_page_in(Page& page);
  /// Starts a page-in ahead of need. Returns false when the page stays absent; the caller that needs it tries again and
  /// reports.
  bool try_page_in(Page& page);
  /// Finishes a page-in whose copy is done, or behind which compute can be ordered: the owner gets its bytes. Throws
  /// the copy's error, and the page is absent then.
  void finish_page_in(PagerLock& lock, Page& page);
  /// Waits for the page's copy in, or finishes it.
  void advance_page_in(PagerLock& lock, Page& page);

  // Waits.

  using Wait = void (Ticket::*)() const;
  /// Gives up the lock while the copy runs, or until compute is ordered behind it. The copy's error is left to the
  /// caller.
  void wait(PagerLock& lock, const Ticket& ticket, Wait how = &Ticket::wait);
  /// Lets another thread have the lock.
  static void pause(PagerLock& lock);

 private:
  /// Makes managed memory absent. It moves while its block stays with its owner, which is not charged for it on the
  /// host.
  void become_absent(Page& page);
  Block* acquire_block(Page& page);
  void undo_page_in(Page& page, Block* block);

  PageTable& table_;
  DeviceMemory& device_;
  HostTier& host_;
  Timeline& out_;
  Timeline& in_;
  PageKeeper& keeper_;
};

}  // namespace spillway::swap
