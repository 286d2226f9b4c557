/// A page's copies to the host tier and back, and the waits for them.
#pragma once
#include <cstdint>

#include "core/memory/device_memory.h"
#include "core/timeline.h"
#include "swap/pager/page_table.h"
#include "swap/tiers/host_tier.h"

namespace spillway {

/// Starts copies and notices their ends. Compute must only come after a copy, so it is ordered behind the ticket: on
/// the CPU that waits, on a device compute is queued behind the copy and the caller goes on. Copies never run under the
/// lock, and keep the blocks they use, never the owner. Called under the lock.
class PageTransfer {
 public:
  PageTransfer(PageTable& table, DeviceMemory& device, HostTier& host, Timeline& out, Timeline& in, PageKeeper& keeper)
      : table_(table), device_(device), host_(host), out_(out), in_(in), keeper_(keeper) {}
  PageTransfer(const PageTransfer&) = delete;
  PageTransfer& operator=(const PageTransfer&) = delete;

  // Out.

  /// Starts the copy of a resident, dirty page. Throws OutOfBudget when the host is full, and what the lane throws.
  void begin_page_out(Page& page);
  /// For page-outs ahead of need. False: the page stays, because the host has no room for it or the copy cannot begin;
  /// an eviction that needs its room reports that.
  bool try_page_out(Page& page);
  /// Orders compute behind a copy that can be: from here on the page counts as clean; managed memory as absent, because
  /// the copy took its bytes. False after a copy that failed: the page is dirty as before.
  bool complete_page_out(Page& page) noexcept;
  /// Waits until the page's block may go. Throws what the copy failed with.
  void wait_for_page_out(PagerLock& lock, Page& page);
  /// No copy out is under way afterwards.
  void finish_pending_page_out(PagerLock& lock, Page& page);
  /// Notices a page-out that is done. After one that failed whoever needs the room tries again, and reports.
  void poll_page_out(Page& page) noexcept;
  /// The page may be written, so its host copy is forgotten. Waits for a copy that reads it.
  void make_dirty(PagerLock& lock, Page& page);
  /// Lets host copies of resident pages that are used sooner make way for a page of these bytes: those are dirty again,
  /// which costs a copy where a place on disk would cost a write and a read. Without a disk, all may have to. None does
  /// where all of them together would not free enough.
  void make_host_room(int64_t bytes, const PageUseTime& use);

  // In.

  /// Starts the copy of an absent page. False: the device has no room. Throws what the lane or the device throws; the
  /// page is absent then.
  bool begin_page_in(Page& page);
  /// For page-ins ahead of need. False: the page stays away, and whoever needs it tries again and reports.
  bool try_page_in(Page& page);
  /// The copy is done, or compute can be ordered behind it: the owner gets its bytes. Throws the copy's error, and the
  /// page is absent then.
  void finish_page_in(PagerLock& lock, Page& page);
  /// Waits for the page's copy in, or finishes it.
  void advance_page_in(PagerLock& lock, Page& page);

  // Waits.

  using Wait = void (Ticket::*)() const;
  /// Gives up the lock while the copy runs, or until compute is ordered behind it. What it failed with is left to the
  /// caller.
  void wait(PagerLock& lock, const Ticket& ticket, Wait how = &Ticket::wait);
  /// Lets another thread have the lock.
  static void pause(PagerLock& lock);

 private:
  /// Managed memory moves while its block stays with its owner, who is not charged for it on the host.
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

}  // namespace spillway
