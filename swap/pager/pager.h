/// The pager, which knows which pages are on the device and which on the host, and moves them.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <span>

#include "core/memory/device_memory.h"
#include "core/memory/host_slab.h"
#include "core/timeline.h"
#include "swap/pager/evictor.h"
#include "swap/pager/page_loader.h"
#include "swap/pager/page_table.h"
#include "swap/pager/page_transfer.h"
#include "swap/pager/prefetcher.h"
#include "swap/pager/replayer.h"
#include "swap/pager/window_access.h"
#include "swap/tiers/host_tier.h"

namespace spillway::swap {

/// Keeps the device's counted bytes within the ledger's budget by moving pages between device and host tier.
///
/// A page is *clean* while a host copy equals its bytes: those can be dropped at any time without another copy.
/// EvictionOrder chooses the pages that leave; PageState says where a page can be. Copies run on the two timelines,
/// never under the lock; only callers' threads change owners' pointers. Blocks come from, and go back to, the compute
/// queue's order. Managed memory (Block::is_managed) keeps its block while its bytes move to the host and back. For it
/// a page-out is the eviction, and nothing is ever clean. Under a soft budget, managed memory that cannot fit goes in
/// all the same. Thread-safe. The pager knows bytes and callbacks, not tensors.
class Pager final : public Reclaimer, public PageKeeper {
 public:
  /// Makes a pager. Pages that the slab has no room for go to `disk`, if there is one. Pages below `small_bytes` are
  /// small (EvictionOrder).
  Pager(DeviceMemory& device, HostSlab& host, Timeline& out, Timeline& in, int64_t small_bytes = 1 << 20,
        DiskTier* disk = nullptr);
  ~Pager() override = default;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Parts for uses of pages besides leases.

  PageTable& table() noexcept { return table_; }             ///< users, next uses, destroyed pages
  Prefetcher& prefetcher() noexcept { return prefetcher_; }  ///< copies ahead of need
  Replayer& replayer() noexcept { return replayer_; }        ///< pages that are made again
  WindowAccess& windows() noexcept { return windows_; }      ///< pages that are used part by part

  /// Registers a resident, dirty page of `bytes` for `block`. The caller's owner holds the block.
  Page* add(Block* block, int64_t bytes, std::unique_ptr<PageOwner> owner, UserId user = kNobody);
  /// Registers an absent page of `bytes` whose host copy, undefined yet, is to be filled with
  /// WindowAccess::write_window. Throws OutOfBudget when the host is full and there is no disk, DiskError.
  Page* add_absent(int64_t bytes, Category category, std::unique_ptr<PageOwner> owner, UserId user = kNobody);
  void recategorize(Page& page, Category category) noexcept;

  /// Makes all pages resident and holds them so, all or nothing. Written pages become dirty, after any copy that still
  /// reads them. Blocks on copies. A page may occur more than once. The pages become `user`'s, if it is given. Throws
  /// OutOfBudget when they do not fit together beside the other held bytes, or a failed copy's error; nothing is leased
  /// then.
  void lease(std::span<const PageUse> uses, UserId user = kNobody);
  /// Ends the leases; each page's next use becomes the use's.
  void unlease(std::span<const PageUse> uses) noexcept;

  /// Ends a user while others stay. Its thread will go on without the gate, so the pages that it used last must not
  /// move under it. They leave the device, and raise the clear error until they are leased or all pages come back to
  /// the device. A page that cannot be evicted because the host tier is full stays on the device and is unregistered,
  /// after its pending replays have run. If a replay does not fit, the page stays registered. Leased ones keep their
  /// leases.
  void remove_user(UserId user) noexcept;
  /// Drops everything that is not leased, copying the dirty pages. For doubles and tests.
  void evict_all();
  /// Brings every page to the device and unregisters it; the owners keep their memory. The budget must allow it. Pages
  /// that cannot come stay as they are, and the first one's error is thrown at the end.
  void unregister_resident();
  /// Brings one page, which may be leased, to the device and unregisters it. Throws when it cannot come; it is a page
  /// then as before.
  void unregister_resident(Page& page);

  // Reclaimer
  void reclaim(int64_t bytes) override;
  bool free_physical_memory(int64_t bytes) override;
  // PageKeeper
  void on_block_released(Block* block) noexcept override;
  /// Destroys an absent page whose owner was destroyed: its host copy goes too. Called on any thread.
  void on_absent_owner_destroyed(Page* page) noexcept;

  PagerStats stats() const;
  /// Returns the seconds that callers have waited so far, for copies and for replays.
  double delayed_seconds() const noexcept { return table_.delayed_seconds(); }
  /// Returns the device bytes held by pages, including those on their way in or out.
  int64_t paged_bytes() const noexcept { return table_.paged_bytes(); }
  /// Returns the totals of the copy lanes and the disk so far.
  LaneTotals copied() const { return host_.copied(); }
  int64_t small_bytes() const noexcept { return small_bytes_; }
  HostSlab& host() noexcept { return host_.slab(); }
  DeviceMemory& device() noexcept { return device_; }
  const DeviceMemory& device() const noexcept { return device_; }

 private:
  std::exception_ptr bring_home(PagerLock& lock, Page& page);
  bool evict_or_unregister(PagerLock& lock, Page& page) noexcept;

  DeviceMemory& device_;
  const int64_t small_bytes_;
  Timeline& out_;
  Timeline& in_;
  HostTier host_;
  PageTable table_;
  PageTransfer transfer_;
  Evictor evictor_;
  Replayer replayer_;
  PageLoader loader_;
  Prefetcher prefetcher_;
  WindowAccess windows_;
};

}  // namespace spillway::swap
